//go:build peers

package moverpod

import (
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/test/s3"
	"github.com/varvebackup/varve/test/verdict"
)

// endBackup tells the pod that its backup has ended.
func (p *tunnelPod) endBackup(t *testing.T) {
	t.Helper()
	if err := os.WriteFile(p.Files.TunnelEnded, []byte("VirtualMachineBackup app/monday has ended"), 0o600); err != nil {
		t.Error(err)
	}
}

// The report says whether the restore point is there, also if the backup ends when nothing of it is needed any more.
func TestMachineUpload_isStoredAlthoughTheBackupHasEnded(t *testing.T) {
	t.Parallel()
	b, m := newBucket(t, false), newMachine(diskBytes, 11)
	p := b.newTunnelPod(t, m, newMachineUpload("1", ""))
	// What is canceled has a quarter of a second to be published.
	p.limits.ended, p.limits.interrupted = 10*time.Millisecond, time.Second
	stop := p.connect(t, m, nil)
	// All is read when the restore point is published.
	b.set(s3.Rule{Method: http.MethodPut, Key: prefix + "xn", Skip: 2, Times: 1, Fault: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		p.endBackup(t)
		time.Sleep(time.Second)
		next.ServeHTTP(w, r)
	}})
	first := p.run(t, datamove.Succeeded)
	if b.faults.Fired(0) != 1 {
		t.Error("the backup did not end while the restore point was published")
	}
	stop()
	// Started again without a report, the mover finds the restore point, with no launcher, and however long the bucket takes.
	p.api.change(func(o map[string]any) { delete(o["metadata"].(map[string]any), "annotations") })
	b.set(s3.Rule{Fault: s3.Delay(100 * time.Millisecond)})
	if again := p.run(t, datamove.Succeeded); again.SnapshotID != first.SnapshotID {
		t.Errorf("%+v, then %+v", first, again)
	}
	if points := b.points(t); len(points) != 1 {
		verdict.Errorf(t, "%d restore points", len(points))
	}
	b.wantRestored(t, first, m)
}
