//go:build root

package agent

import (
	"os"
	"path/filepath"
	"testing"

	"k8s.io/utils/clock"

	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/disk/disktest"
	"github.com/varvebackup/varve/internal/store/diskguard"
	"github.com/varvebackup/varve/internal/store/reflink"
	"github.com/varvebackup/varve/test/loop"
)

// A disk that is guarded keeps all promises of a disk.
func TestGuard_conformance(t *testing.T) {
	t.Parallel()
	fs := loop.NewFileSystem(t, "xfs")
	opened := map[disk.Disk]*reflink.Disk{}
	open := func(t *testing.T, dir string) disk.Disk {
		t.Helper()
		d, err := reflink.Open(t.Context(), dir, reflink.Options{})
		if err != nil {
			t.Fatal(err)
		}
		guarded := diskguard.New(clock.RealClock{}).Wrap(d)
		opened[guarded] = d
		return guarded
	}
	dirs := map[disk.Disk]string{}
	disktest.Run(t, disktest.Kind{Open: func(t *testing.T) disk.Disk {
		t.Helper()
		dir := filepath.Join(fs.Dir, filepath.Base(t.Name()))
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := reflink.Format(dir, "disk-1"); err != nil {
			t.Fatal(err)
		}
		d := open(t, dir)
		dirs[d] = dir
		return d
	}, Reopen: func(t *testing.T, old disk.Disk) disk.Disk {
		t.Helper()
		if err := opened[old].Close(); err != nil {
			t.Fatal(err)
		}
		return open(t, dirs[old])
	}})
	for _, d := range opened {
		_ = d.Close() // the earlier one of each directory is closed already
	}
}
