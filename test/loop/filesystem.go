package loop

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// fileSystemBytes is the size of a FileSystem.
const fileSystemBytes = 400 << 20

// FileSystem is a file system of its own in a sparse file.
type FileSystem struct {
	// Kind is xfs, btrfs or ext4, Device its block device, and Dir where it is mounted.
	Kind, Device, Dir string
	// Mounted says that it is mounted.
	Mounted bool
}

// NewFileSystem makes a file system and mounts it until the test ends. Options are those of mkfs.
func NewFileSystem(tb testing.TB, kind string, options ...string) *FileSystem {
	tb.Helper()
	image := filepath.Join(tb.TempDir(), kind)
	err := os.WriteFile(image, nil, 0o600)
	if err == nil {
		err = os.Truncate(image, fileSystemBytes)
	}
	if err != nil {
		tb.Fatal(err)
	}
	mkfs := exec.CommandContext(tb.Context(), "mkfs."+kind, append([]string{"-q"}, append(options, image)...)...)
	if out, err := mkfs.CombinedOutput(); err != nil {
		tb.Fatalf("mkfs.%s (Debian's packages xfsprogs, btrfs-progs and e2fsprogs): %v: %s", kind, err, out)
	}
	s := &FileSystem{Kind: kind, Device: Device(tb, image), Dir: tb.TempDir()}
	s.Mount(tb, "")
	tb.Cleanup(func() {
		if s.Mounted {
			s.Unmount(tb)
		}
	})
	return s
}

// Mount mounts the file system with options.
func (s *FileSystem) Mount(tb testing.TB, options string) {
	tb.Helper()
	if err := unix.Mount(s.Device, s.Dir, s.Kind, unix.MS_NOATIME, options); err != nil {
		tb.Fatal(err)
	}
	s.Mounted = true
}

// Unmount fails if anything in the file system is open. A program that another test starts has the files of this
// process until its exec ends, so a busy file system gets some time.
func (s *FileSystem) Unmount(tb testing.TB) {
	tb.Helper()
	s.Mounted = false
	err := unix.Unmount(s.Dir, 0)
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	for i := 0; errors.Is(err, unix.EBUSY) && i < 1000; i++ {
		<-poll.C
		err = unix.Unmount(s.Dir, 0)
	}
	if err != nil {
		tb.Fatalf("unmount: %v, then %v", err, unix.Unmount(s.Dir, unix.MNT_DETACH))
	}
}

// ShutDown makes every later access to files of an XFS file system fail, as that of a disk that dies.
func (s *FileSystem) ShutDown(tb testing.TB) {
	tb.Helper()
	const goingDown, withoutLog = 0x8004587d, 2 // XFS_IOC_GOINGDOWN and XFS_FSOP_GOING_FLAGS_NOLOGFLUSH of linux/xfs
	dir, err := os.Open(s.Dir)
	if err == nil {
		err = errors.Join(unix.IoctlSetPointerInt(int(dir.Fd()), goingDown, withoutLog), dir.Close())
	}
	if err != nil {
		tb.Fatal(err)
	}
}
