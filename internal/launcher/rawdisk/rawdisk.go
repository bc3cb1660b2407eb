// Package rawdisk handles the raw disks of a guest: the file disk.img on a Filesystem claim, or the device of a Block
// claim. It creates the file of a blank claim, and reports how much data a disk holds. It never changes a disk that has content.
package rawdisk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/durable"
)

const (
	// reservePercent of a blank claim's free space is left to the file system, whose own metadata grows with the disk.
	reservePercent = 5
	// granularity is the unit of a new disk's size, in bytes.
	granularity = 1 << 20
)

// ErrUnusable is wrapped by errors that a user must fix in the claim before the guest can start.
var ErrUnusable = errors.New("disk cannot be used")

// EnsureFile makes path ready as the raw disk of a Filesystem claim. It does not change an existing file, which must
// be regular and not empty. If there is no file (the claim is blank), it creates a sparse one that fills the claim:
// the free space less 5 per cent, in whole MiB. The file gets its name only when it is complete and durable.
func EnsureFile(path string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return createBlank(path)
	case err != nil:
		return fmt.Errorf("open disk: %w", err)
	case !info.Mode().IsRegular():
		return fmt.Errorf("%w: %s is not a regular file but %s", ErrUnusable, path, info.Mode().Type())
	case info.Size() == 0:
		return fmt.Errorf("%w: %s is empty; delete it to get a blank disk, or fill it", ErrUnusable, path)
	}
	return nil
}

// EnsureDevice checks that path is a block device.
func EnsureDevice(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("open disk: %w", err)
	}
	if info.Mode()&fs.ModeDevice == 0 || info.Mode()&fs.ModeCharDevice != 0 {
		return fmt.Errorf("%w: %s is not a block device", ErrUnusable, path)
	}
	return nil
}

func createBlank(path string) error {
	dir := filepath.Dir(path)
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("create disk %s: statfs: %w", path, err)
	}
	size := blankSize(st.Bavail * uint64(st.Bsize))
	if size == 0 {
		return fmt.Errorf("%w: the claim has %d bytes free, too few for a disk %s", ErrUnusable, st.Bavail*uint64(st.Bsize), path)
	}
	tmp := path + ".new"
	if err := writeSparse(tmp, size); err != nil {
		return fmt.Errorf("create disk %s: %w", path, errors.Join(err, os.Remove(tmp)))
	}
	if err := os.Rename(tmp, path); err != nil {
		return fmt.Errorf("create disk: %w", err)
	}
	if err := durable.Sync(dir); err != nil {
		return fmt.Errorf("create disk %s: %w", path, err)
	}
	return nil
}

// blankSize returns the size in bytes of a new disk on a file system with this many bytes available.
func blankSize(available uint64) int64 {
	usable := available - available/100*reservePercent
	return int64(usable / granularity * granularity)
}

// writeSparse makes a file that everybody may read who can mount the claim, as an export pod, which is not root.
func writeSparse(path string, size int64) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o664)
	if err != nil {
		return err
	}
	return errors.Join(f.Chmod(0o664), f.Truncate(size), f.Sync(), f.Close()) // whatever the umask is
}
