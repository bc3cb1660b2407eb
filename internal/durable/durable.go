// Package durable changes files so that a crash at any moment leaves either the old state or the new one.
package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
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

// unfinishedSuffix ends the names of files that are being written. A number is in front of it.
const unfinishedSuffix = ".new"

// unfinishedLife is how long a file may be unfinished. It is written at once, from memory.
const unfinishedLife = time.Hour

// Write creates or replaces a file. Several processes may do so at once: one of the contents wins. A crash may leave a file beside it with
// the same name and a number and .new appended; a Write that comes an hour later or more removes it.
func Write(path string, data []byte) error {
	dir, name := filepath.Split(path)
	f, err := os.CreateTemp(filepath.Clean(dir), name+".*"+unfinishedSuffix)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	written, statErr := f.Stat()
	if err = errors.Join(err, statErr, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // A partial file is useless, and takes space that may be scarce.
		return err
	}
	if err := Sync(filepath.Clean(dir)); err != nil {
		return err
	}
	removeUnfinished(filepath.Clean(dir), name, written.ModTime().Add(-unfinishedLife))
	return nil
}

// removeUnfinished removes what crashes in Write have left of a file, if it has not changed since before, in the time of the file system. Whoever
// was suspended for that long finds its file missing, and its Write fails. What cannot be removed only takes space.
func removeUnfinished(dir, name string, before time.Time) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		number, ours := strings.CutPrefix(e.Name(), name+".")
		number, unfinished := strings.CutSuffix(number, unfinishedSuffix)
		if _, err := strconv.ParseUint(number, 10, 64); err != nil || !ours || !unfinished || !e.Type().IsRegular() {
			continue
		}
		if info, err := e.Info(); err == nil && info.ModTime().Before(before) {
			_ = os.Remove(filepath.Join(dir, e.Name()))
		}
	}
}
