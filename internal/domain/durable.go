package domain

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// renameDurably puts the file from in the place of to; both are in one directory. The content is
// durable before the name is, and the name when this returns.
func renameDurably(from, to string) error {
	if err := syncPath(from); err != nil {
		return err
	}
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return syncPath(filepath.Dir(to))
}

// removeDurably removes a file, if it is there.
func removeDurably(path string) error {
	if err := os.Remove(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	return syncPath(filepath.Dir(path))
}

// syncPath makes a file or a directory durable.
func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
