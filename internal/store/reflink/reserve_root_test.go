//go:build root

package reflink

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/disk/disktest"
)

// fillDisk writes to a head, as its guest does, until nothing more fits on the disk.
func fillDisk(tb testing.TB, d *Disk, head disk.Name) {
	tb.Helper()
	l, err := d.Open(tb.Context(), head)
	if err != nil {
		tb.Fatal(err)
	}
	f, err := os.OpenFile(l.Path(), os.O_RDWR, 0)
	if err != nil {
		tb.Fatal(err)
	}
	offset, err := f.Seek(0, unix.SEEK_HOLE)
	for step := int64(1 << 20); err == nil && step >= 4096; {
		_, err = f.WriteAt(disktest.Noise(byte(offset>>12), step), offset)
		if err == nil {
			err = f.Sync()
		}
		if errclass.IsFull(err) {
			step, err = step/2, nil
			continue
		}
		offset += step
	}
	if err := errors.Join(err, f.Close(), l.Close()); err != nil {
		tb.Fatal(err)
	}
}

// reserved returns how many bytes of the disk are kept for deletions.
func reserved(tb testing.TB, d *Disk) int64 {
	tb.Helper()
	var info unix.Stat_t
	if err := unix.Stat(filepath.Join(d.dir, reserveFile), &info); err != nil {
		tb.Fatal(err)
	}
	return info.Blocks * 512
}

// What is on a full disk can be deleted, and that frees its space: also again and again, after a crash, and if nothing
// is freed by it.
func TestDelete_onAFullDisk(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"xfs", "btrfs"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := newFileSystem(t, kind)
			d := s.openDisk(t, Options{})
			helper := disktest.Disk{Disk: d, TB: t}
			helper.NewHead("h", "h", "", 1<<40)
			for i, name := range []disk.Name{"s1", "s2", "s3", "s4"} {
				helper.Write("h", 0, disktest.Noise(byte(i), 24<<20))
				helper.NewSnapshot("h", name, disk.UID(name))
			}
			for _, name := range []disk.Name{"s4", "s1"} { // the first one shares all with the head
				fillDisk(t, d, "h")
				if err := d.Delete(t.Context(), name); err != nil {
					t.Fatalf("%v, %d bytes are kept", err, reserved(t, d))
				}
				if got := reserved(t, d); got < reserveBytes-2*reserveLeast {
					t.Errorf("%d bytes are kept after the deletion of %s", got, name)
				}
			}
			fillDisk(t, d, "h")
			// A crash after the reserve was given up.
			if _, err := d.giveReserve(); err != nil {
				t.Fatal(err)
			}
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
			d = s.openDisk(t, Options{})
			// btrfs gives the blocks back with its next transaction.
			if got := reserved(t, d); got < reserveBytes-2*reserveLeast && kind == "xfs" {
				t.Errorf("%d bytes are kept after the disk was opened", got)
			}
			fillDisk(t, d, "h")
			for _, name := range []disk.Name{"s2", "s3", "h"} {
				if err := d.Delete(t.Context(), name); err != nil {
					t.Error(err)
				}
			}
			if got := reserved(t, d); got < reserveBytes || got > reserveBytes+reserveLeast {
				t.Errorf("%d bytes are kept at the end", got)
			}
			wantNothingElse(t, d)
		})
	}
}
