package disk

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/varvebackup/varve/internal/durable"
)

// journalFiles are the steps by which a journal is kept. A crash may come between any two.
type journalFiles interface {
	Read(path string) ([]byte, error)
	// Write creates or replaces a file. Its content after a crash is undefined until Sync.
	Write(path string, data []byte) error
	// Overwrite changes bytes of a file that has the same length. Which of them a crash has changed is undefined until
	// Sync.
	Overwrite(path string, data []byte) error
	// Sync makes a file durable, or the names in a directory.
	Sync(path string) error
	Rename(from, to string) error
	Remove(path string) error
}

// writeDurably replaces a file. After a crash at any moment the file has the old content or the new, and the new once
// writeDurably has returned.
func writeDurably(f journalFiles, path string, data []byte) error {
	next := path + ".new"
	if err := f.Write(next, data); err != nil {
		return err
	}
	if err := f.Sync(next); err != nil {
		return err
	}
	if err := f.Rename(next, path); err != nil {
		return err
	}
	return f.Sync(filepath.Dir(path))
}

// removeDurably removes a file, if it exists, and the next version that a crash in writeDurably has left behind.
func removeDurably(f journalFiles, path string) error {
	for _, p := range []string{path, path + ".new"} {
		if err := f.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return f.Sync(filepath.Dir(path)) // even if it was already gone: that may not have been durable
}

// osFiles implements journalFiles on the real file system.
type osFiles struct{}

func (osFiles) Read(path string) ([]byte, error) { return os.ReadFile(path) }
func (osFiles) Sync(path string) error           { return durable.Sync(path) }
func (osFiles) Rename(from, to string) error     { return os.Rename(from, to) }
func (osFiles) Remove(path string) error         { return os.Remove(path) }

func (osFiles) Overwrite(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(data, 0)
	return errors.Join(err, f.Close())
}

func (osFiles) Write(path string, data []byte) error {
	err := os.WriteFile(path, data, 0o600)
	if err != nil {
		_ = os.Remove(path) // A partial file is useless, and takes space that may be scarce.
	}
	return err
}
