package reflink

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/durable"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
)

// flagImmutable is FS_IMMUTABLE_FL of the kernel's include/uapi/linux/fs.h.
const flagImmutable = 0x10

// checkFileSystem makes a clone of a file, and removes both.
func checkFileSystem(dir string) error {
	var info unix.Statfs_t
	if err := unix.Statfs(dir, &info); err != nil {
		return err
	}
	if info.Type != unix.XFS_SUPER_MAGIC && info.Type != unix.BTRFS_SUPER_MAGIC {
		return errclass.Errorf(errclass.Invalid, "its file system (type %#x) is neither XFS nor btrfs: use one of those",
			info.Type)
	}
	probe := filepath.Join(dir, headerFile+newSuffix)
	if err := removeTree(probe); err != nil {
		return err
	}
	if err := os.Mkdir(probe, 0o700); err != nil {
		return err
	}
	return errors.Join(probeClone(probe), removeTree(probe))
}

func probeClone(dir string) (err error) {
	from, err := os.Create(filepath.Join(dir, "from"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	to, err := os.Create(filepath.Join(dir, "to"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	if _, err := from.Write(make([]byte, 4096)); err != nil {
		return describeFull(err)
	}
	err = unix.IoctlFileClone(int(to.Fd()), int(from.Fd()))
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOTTY) {
		return errclass.Errorf(errclass.Invalid, "it has no reflinks (%w): use XFS made with reflink=1, or btrfs",
			err)
	}
	if err != nil {
		return describeFull(err)
	}
	return setImmutable(to.Name(), true)
}

// cloneBlocks gives the file the blocks of an object.
func (d *Disk) cloneBlocks(ctx context.Context, source *lease, to *os.File) (err error) {
	from, err := os.Open(source.Path())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	if d.isWritten(source) {
		many, err := hasMoreExtents(ctx, from, d.maxExtents)
		if err != nil {
			return err
		}
		if many {
			return errclass.Errorf(errclass.Conflict, "%q is in use and has more than %d extents, so a clone would stop its "+
				"reads and writes for seconds: detach it, or defragment %s first (xfs_fsr, or btrfs filesystem defragment)",
				source.object.Name, d.maxExtents, from.Name())
		}
	}
	if err := unix.IoctlFileClone(int(to.Fd()), int(from.Fd())); err != nil {
		return fmt.Errorf("clone %s: %w", from.Name(), err)
	}
	return nil
}

// isWritten reports whether a clone of an object can be in its user's way: it is a head that others than this lease have
// open.
func (d *Disk) isWritten(source *lease) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return source.object.Kind == disk.KindHead && d.leases[source.object.UID] > 1
}

// setImmutable sets or clears what chattr calls i.
func setImmutable(path string, immutable bool) (err error) {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	flags, err := unix.IoctlGetUint32(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	if err != nil {
		return fmt.Errorf("read the flags of %s: %w", path, err)
	}
	wanted := flags &^ flagImmutable
	if immutable {
		wanted |= flagImmutable
	}
	if wanted == flags {
		return nil
	}
	if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, int(wanted)); err != nil {
		return fmt.Errorf("make %s immutable or not: %w", path, err)
	}
	return nil
}

// isImmutable reports whether a file can be changed by nobody.
func isImmutable(path string) (_ bool, err error) {
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	flags, err := unix.IoctlGetUint32(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	return flags&flagImmutable != 0, err
}

// makeDirectory makes a directory, unless it is there, and makes its name durable.
func makeDirectory(path string) error {
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return durable.Sync(filepath.Dir(path))
}

// removeTree removes a file or a directory with all in it, immutable or not, if it is there.
func removeTree(path string) error {
	err := filepath.WalkDir(path, func(name string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		return setImmutable(name, false)
	})
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err = errors.Join(err, os.RemoveAll(path)); err != nil {
		return err
	}
	return durable.Sync(filepath.Dir(path))
}

// removeEmptyDirectory removes a directory if it is there and empty.
func removeEmptyDirectory(path string) error {
	switch err := os.Remove(path); {
	case err == nil:
		return durable.Sync(filepath.Dir(path))
	case errors.Is(err, os.ErrNotExist), errors.Is(err, unix.ENOTEMPTY), errors.Is(err, os.ErrExist):
		return nil
	default:
		return err
	}
}

// describeFull gives an error of a full file system its class.
func describeFull(err error) error {
	if errclass.IsFull(err) {
		return fmt.Errorf("the disk is full, free or add space: %w: %w", errclass.Exhausted, err)
	}
	return err
}
