//go:build root

package source_test

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/handover"
	"github.com/varvebackup/varve/test/loop"
)

// newBlockDevice makes a device as a source pod gets it: a loop device on a thin file. The file is on a file system of
// 400 MiB.
func newBlockDevice(t *testing.T, kind string) (device, file string) {
	t.Helper()
	file = filepath.Join(loop.NewFileSystem(t, kind).Dir, "head")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, handover.DeviceBytes); err != nil {
		t.Fatal(err)
	}
	return loop.Device(t, file), file
}

func TestRun_writesToABlockDevice(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"xfs", "btrfs"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			device, file := newBlockDevice(t, kind)
			first := &server{
				content: image(40*mib + 1), noRanges: true, breakEvery: 39 * mib, changeAfter: 2, changed: image(8*mib + 5),
			}
			first.breaks.Store(1)
			if err := run(t, device, serve(t, first)); err != nil {
				t.Fatal(err)
			}
			wantImage(t, device, first.changed)
			wantImage(t, file, first.changed) // as the store reads it
			var info unix.Stat_t
			if err := unix.Stat(file, &info); err != nil {
				t.Fatal(err)
			}
			if used := info.Blocks * 512; used > 12*mib {
				t.Errorf("the file takes %d bytes: what the first attempt wrote is still there", used)
			}
		})
	}
}

// The device itself says nothing but that there was an error of input or output.
func TestRun_saysThatTheDiskIsFull(t *testing.T) {
	t.Parallel()
	device, _ := newBlockDevice(t, "xfs")
	wantFailure(t, run(t, device, serve(t, &server{content: image(500 * mib)})), errclass.Exhausted, "probably full")
}
