package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/errclass"
)

// packing are the file systems that may store data in less space than its size, so that their free space says nothing.
var packing = []int64{unix.BTRFS_SUPER_MAGIC, 0x2fc12fc1 /* ZFS */, 0xca451a4e /* bcachefs */}

// checkRoom refuses a file at path if its file system has no room for that much data. info is the existing file, whose space
// is reused, or nil for a new file. A file system that does not say how much is free is assumed to have enough.
func checkRoom(path string, info fs.FileInfo, data int64) error {
	at := path
	if info == nil {
		at = filepath.Dir(path)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(at, &st); errors.Is(err, fs.ErrNotExist) {
		return errclass.Errorf(ErrNotFound, "target %s: there is no directory %s", path, at)
	} else if err != nil {
		return fmt.Errorf("free space of %s: %w", at, os.NewSyscallError("statfs", err))
	}
	if st.Blocks == 0 || slices.Contains(packing, st.Type) {
		return nil
	}
	free, need := int64(st.Bavail)*st.Frsize, data
	if info != nil {
		used, err := allocatedBytes(path)
		if err != nil {
			return err
		}
		need -= used
	}
	if need <= free {
		return nil
	}
	return errclass.Errorf(errclass.ErrTargetFull,
		"target %s needs %d MiB for the disk's data, and its file system has %d MiB free: make space there, or choose another place",
		path, mebibytes(need), free>>20)
}

// allocatedBytes returns how much space a file takes.
func allocatedBytes(path string) (int64, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, fmt.Errorf("space of %s: %w", path, os.NewSyscallError("stat", err))
	}
	return st.Blocks * 512, nil
}

// mebibytes returns n in MiB, rounded up.
func mebibytes(n int64) int64 { return (n + 1<<20 - 1) >> 20 }

// explainFull says what to do about an error that means a full file system. It returns other errors unchanged.
func explainFull(name string, err error) error {
	if errclass.IsFull(err) {
		return errclass.Errorf(errclass.ErrTargetFull, "target %s: no space is left: make some and continue: %w",
			name, err)
	}
	return err
}
