// Package durable changes files so that a crash at any moment leaves either the old state or the new one.
package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Rename replaces the file to with the file from; both must be in one directory. The content is durable before the name is, and
// the name is durable when Rename returns.
func Rename(from, to string) error {
	if err := Sync(from); err != nil {
		return err
	}
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return Sync(filepath.Dir(to))
}

// Remove removes a file, if it exists.
func Remove(path string) error {
	if err := os.Remove(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	return Sync(filepath.Dir(path))
}

// Sync makes a file or a directory durable.
func Sync(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// Write creates or replaces a file. A crash may leave a file beside it with the same name and .new appended.
func Write(path string, data []byte) error {
	next := path + ".new"
	if err := os.WriteFile(next, data, 0o600); err != nil {
		return err
	}
	return Rename(next, path)
}
