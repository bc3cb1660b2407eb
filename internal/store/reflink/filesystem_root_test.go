//go:build root

package reflink

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/test/loop"
)

// fileSystem is one of its own in a sparse file.
type fileSystem struct {
	*loop.FileSystem

	dir, mountOptions string
}

// newFileSystem makes and mounts a file system: xfs, btrfs or ext4.
func newFileSystem(tb testing.TB, kind string, options ...string) *fileSystem {
	tb.Helper()
	made := loop.NewFileSystem(tb, kind, options...)
	return &fileSystem{FileSystem: made, dir: made.Dir}
}

func (s *fileSystem) mount(tb testing.TB) {
	tb.Helper()
	s.Mount(tb, s.mountOptions)
}

func (s *fileSystem) unmount(tb testing.TB) {
	tb.Helper()
	s.Unmount(tb)
}

// From the kernel's include/uapi/linux/fs.h (older: fs/xfs/libxfs/xfs_fs.h).
const (
	ioctlShutdown      = 0x8004587D
	shutdownFlushLog   = 1
	shutdownNoFlushLog = 2
)

// crash ends a file system as a loss of power does, with or without the log that is in memory.
func (s *fileSystem) crash(how uint32) error {
	f, err := os.Open(s.dir)
	if err != nil {
		return err
	}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), ioctlShutdown, uintptr(unsafe.Pointer(&how)))
	if errno != 0 {
		err = errno
	}
	return errors.Join(err, f.Close())
}

// openDisk opens the disk of a file system, which the test closes or not.
func (s *fileSystem) openDisk(tb testing.TB, o Options) *Disk {
	tb.Helper()
	err := Format(s.dir, "disk-1")
	if err != nil {
		tb.Fatal(err)
	}
	d, err := Open(tb.Context(), s.dir, o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = d.Close() }) // which may be the second time
	return d
}

// wantNothingElse checks that a disk has the files of its objects, and no others.
func wantNothingElse(tb testing.TB, d *Disk) {
	tb.Helper()
	var want []string
	objects, err := d.List(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	for _, o := range objects {
		for group, m := range d.groups {
			if !slices.ContainsFunc(m.Objects, func(e entry) bool { return e.UID == o.UID }) {
				continue
			}
			want = append(want, filepath.Join(group, metadataFile))
			switch o.Kind {
			case disk.KindHead:
				want = append(want, group+"/head")
			case disk.KindSnapshot:
				want = append(want, group+"/snapshots/"+string(o.UID))
			case disk.KindImage:
				want = append(want, group+"/data", group+"/hashes")
				if _, err := os.Stat(filepath.Join(d.dir, group, damagedFile)); err == nil && o.State == disk.StateDamaged {
					want = append(want, group+"/damaged")
				}
			}
		}
	}
	want = append(want, headerFile, reserveFile)
	sort.Strings(want)
	var got []string
	err = fs.WalkDir(os.DirFS(d.dir), ".", func(path string, e fs.DirEntry, err error) error {
		empty := e.IsDir() && strings.Count(path, "/") == 1 // an image, or a volume
		if children, _ := os.ReadDir(filepath.Join(d.dir, path)); !e.IsDir() || (empty && len(children) == 0) {
			got = append(got, path)
		}
		return err
	})
	sort.Strings(got)
	if diff := cmp.Diff(slices.Compact(want), got); diff != "" || err != nil {
		tb.Fatalf("files (-want +got): %v\n%s", err, diff)
	}
}
