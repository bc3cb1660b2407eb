// Package durable changes files so that a crash at any moment leaves what was there before or what was meant.
package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Rename puts the file from in the place of to; both are in one directory. The content is
// durable before the name is, and the name when this returns.
func Rename(from, to string) error {
	if err := Sync(from); err != nil {
		return err
	}
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return Sync(filepath.Dir(to))
}

// Remove removes a file, if it is there.
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

// Write makes or replaces a file. What a crash may leave beside it is called like it, with .new after its name.
func Write(path string, data []byte) error {
	next := path + ".new"
	if err := os.WriteFile(next, data, 0o600); err != nil {
		return err
	}
	return Rename(next, path)
}
