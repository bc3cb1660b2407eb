package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// workspaceName is the directory below -dir that is removed at the end. Its name is always the same, so that the next
// run removes what a killed run left behind.
const workspaceName = "bench-repository"

// openWorkspace makes an empty directory for this run alone, and checks that there is enough space.
func openWorkspace(parent string, needs int64) (dir string, remove func() error, err error) {
	dir = filepath.Join(parent, workspaceName)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", nil, err
	}
	lock, err := os.Open(dir)
	if err != nil {
		return "", nil, err
	}
	remove = func() error { return errors.Join(os.RemoveAll(dir), lock.Close()) }
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return "", nil, errors.Join(fmt.Errorf("%s is in use by another run: %w", dir, err), lock.Close())
	}
	if err := emptyDirectory(dir); err != nil {
		return "", nil, errors.Join(err, lock.Close())
	}
	var s unix.Statfs_t
	if err := unix.Fstatfs(int(lock.Fd()), &s); err != nil {
		return "", nil, errors.Join(err, remove())
	}
	if free := int64(s.Bavail) * s.Bsize; free < needs {
		return "", nil, errors.Join(fmt.Errorf("%s has %d GiB free, and the run needs %d: give another -dir, or a smaller -image-gib or -corpus-mib", dir, free/gib, (needs+gib-1)/gib), remove())
	}
	return dir, remove, nil
}

// emptyDirectory removes everything in a directory.
func emptyDirectory(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var failures []error
	for _, e := range entries {
		failures = append(failures, os.RemoveAll(filepath.Join(dir, e.Name())))
	}
	return errors.Join(failures...)
}

// bytesIn returns the total size of all files in a directory.
func bytesIn(dir string) (int64, error) {
	var sum int64
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		sum += info.Size()
		return nil
	})
	return sum, err
}
