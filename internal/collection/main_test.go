package collection

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/export/endpoint"
	"github.com/varvebackup/varve/internal/export/exporttest"
	"github.com/varvebackup/varve/test/exportsite"
	"github.com/varvebackup/varve/test/verdict"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// describe returns the backup that a site serves.
func describe(s *exportsite.Site, uid, checkpoint string, volumes ...export.Volume) Backup {
	b := Backup{Namespace: "shop", VM: "web", Name: "web-" + uid, UID: uid, Tracker: "nightly", Checkpoint: checkpoint, PointInTime: time.Unix(1_800_000_000, 0), Quiesced: true}
	for _, v := range volumes {
		info := v.Info()
		b.Volumes = append(b.Volumes, Volume{Volume: endpoint.Volume{
			Name: info.Name, Map: s.URL("/exports/" + info.Name + "/map"), Data: s.URL("/exports/" + info.Name + "/data"), Bytes: info.Bytes, Incremental: info.Incremental,
		}})
	}
	return b
}

// mustCollect collects a backup.
func mustCollect(t *testing.T, q Request) *Result {
	t.Helper()
	result, err := Collect(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// wantFile compares a raw file with a volume.
func wantFile(t *testing.T, path string, v *exporttest.Volume) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(got, v.Content) {
		verdict.Errorf(t, "%s has other bytes than volume %s: %v", path, v.Description.Name, err)
	}
}

// wantOnly checks which files a directory has.
func wantOnly(t *testing.T, directory string, names ...string) {
	t.Helper()
	entries, err := os.ReadDir(directory)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		if _, err := os.Stat(filepath.Join(directory, n)); err != nil {
			t.Error(err)
		}
	}
	if len(entries) != len(names) {
		t.Errorf("%s has %v, want %v", directory, entries, names)
	}
}

// interrupted collects until a number of bytes of a volume has come, and ends as after Ctrl-C.
func interrupted(t *testing.T, q Request, volume string, after int64) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	q.Progress = func(p Progress) {
		if p.Volume == volume && p.Phase == PhasePulling && p.ProcessedBytes >= after {
			cancel()
		}
	}
	if _, err := Collect(ctx, q); !errors.Is(err, context.Canceled) {
		t.Fatalf("interrupted: %v", err)
	}
	if _, err := os.Stat(filepath.Join(q.Directory, manifestName)); err == nil {
		t.Error("half a backup has a manifest")
	}
}
