//go:build peers

package moverpod

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/test/s3"
	"github.com/varvebackup/varve/test/verdict"
)

// newTree returns a volume with files of 2 MiB each.
func newTree(t *testing.T, count int) string {
	t.Helper()
	volume := t.TempDir()
	for i := range count {
		if err := os.WriteFile(filepath.Join(volume, fmt.Sprintf("file-%03d", i)), noise(2*mib, uint64(i)), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	return volume
}

// Movers of files that are killed make one restore point, and one volume.
func TestKilledMover_ofFilesGoesOn(t *testing.T) {
	t.Parallel()
	b := newBucket(t, false)
	volume := newTree(t, 60)
	up := b.newPod(t, newUpload(filesystem), volume)
	up.limits.flush = 200 * time.Millisecond
	b.set(s3.Rule{Method: http.MethodPut, Key: prefix + "p", Fault: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		time.Sleep(200 * time.Millisecond)
		b.count(w, r, next)
	}})
	first := up.startChild(t)
	waitFor(t, "half of the data", func() bool { return b.sent.Load() > 60*mib })
	first.kill()
	before := b.sent.Load()
	b.set()
	if code := up.startChild(t).wait(t, patience); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	report := up.wantReport(t, datamove.Succeeded)
	if again := b.sent.Load() - before; again > 100*mib || report.TotalBytes != 120*mib {
		t.Errorf("%d MiB before the death, %d MiB after it; %+v", before/mib, again/mib, report)
	}
	if points := b.points(t); len(points) != 1 {
		verdict.Errorf(t, "%d restore points", len(points))
	}

	target := t.TempDir()
	down := b.newPod(t, newDownload(filesystem, report.SnapshotID), target)
	b.fetched.Store(0)
	b.set(s3.Rule{Method: http.MethodGet, Key: prefix + "p", Match: func(*http.Request) bool { return b.fetched.Load() > 60*mib }, Fault: hang})
	first = down.startChild(t)
	waitFor(t, "a hanging request", func() bool { return b.faults.Fired(0) > 0 })
	first.kill()
	b.fetched.Store(0)
	b.set()
	if code := down.startChild(t).wait(t, patience); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	down.wantReport(t, datamove.Succeeded)
	t.Logf("%d MiB were fetched again", b.fetched.Load()/mib)
	if !maps.Equal(readTree(t, volume), readTree(t, target)) {
		verdict.Errorf(t, "the files are others")
	}
}

func TestCancel_endsAMoverOfFilesWhoseStorageHangs(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		download bool
		rule     s3.Rule
	}{
		"storing":    {false, s3.Rule{Method: http.MethodPut, Key: prefix + "p"}},
		"publishing": {false, s3.Rule{Method: http.MethodPut, Key: prefix + "xn", Skip: 1}},
		"restoring":  {true, s3.Rule{Method: http.MethodGet, Key: prefix + "p"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBucket(t, false)
			volume := newTree(t, 30)
			job := newUpload(filesystem)
			if c.download {
				job = newDownload(filesystem, b.upload(t, filesystem, volume).SnapshotID)
				volume = t.TempDir()
			}
			p := b.newPod(t, job, volume)
			c.rule.Fault = hang
			b.set(c.rule)
			mover := p.startChild(t)
			waitFor(t, "a request that hangs", func() bool { return b.faults.Fired(0) > 0 })
			time.Sleep(200 * time.Millisecond)
			p.api.cancel()
			began := time.Now()
			if code := mover.wait(t, patience); code != 0 {
				t.Errorf("exit code %d", code)
			}
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("it took %s", took)
			}
			p.wantReport(t, datamove.Canceled)
		})
	}
}
