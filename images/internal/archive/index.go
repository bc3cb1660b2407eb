package archive

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Index maps the name of an image to its description.
type Index map[string]Built

// indexName is the name of the index file in the directory of images.
const indexName = "images.json"

// ReadIndex reads the index of a directory of images. If there is none, the error wraps fs.ErrNotExist.
func ReadIndex(dir string) (Index, error) {
	text, err := os.ReadFile(filepath.Join(dir, indexName))
	if err != nil {
		return nil, fmt.Errorf("read image index: %w", err)
	}
	var index Index
	if err := json.Unmarshal(text, &index); err != nil {
		return nil, fmt.Errorf("decode image index %s: %w", dir, err)
	}
	return index, nil
}

// Publish puts images into dir, under file names that do not change between builds, and adds them to its index. It
// keeps the entries of other images. Readers see the old file or the new one, never a part of one. Two publishers take turns.
func Publish(dir string, images Index) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("publish images: %w", err)
	}
	unlock, err := lockDir(dir)
	if err != nil {
		return fmt.Errorf("publish images: %w", err)
	}
	defer unlock()
	index, err := ReadIndex(dir)
	if errors.Is(err, fs.ErrNotExist) {
		index, err = Index{}, nil
	}
	if err != nil {
		return err
	}
	for name, built := range images {
		path := filepath.Join(dir, name+".tar")
		if err := Place(built.Tar, path); err != nil {
			return fmt.Errorf("publish image %s: %w", name, err)
		}
		built.Tar = path
		index[name] = built
	}
	text, err := json.MarshalIndent(index, "", "  ")
	if err != nil {
		return fmt.Errorf("encode image index: %w", err)
	}
	tmp := filepath.Join(dir, "."+indexName)
	if err := os.WriteFile(tmp, append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("write image index: %w", err)
	}
	return os.Rename(tmp, filepath.Join(dir, indexName))
}

// lockDir takes an exclusive lock on a directory.
func lockDir(dir string) (unlock func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { _ = f.Close() }, nil
}

// Place makes dst the same file as src: a hard link to it, or a copy if the two are on different file systems. dst
// outlives the cache entry that src is part of.
func Place(src, dst string) error {
	tmp := dst + ".tmp"
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	if err := os.Link(src, tmp); err != nil {
		if err := copyFile(src, tmp); err != nil {
			return err
		}
	}
	// Renaming over another name of the same file does nothing and leaves tmp.
	return errors.Join(os.Rename(tmp, dst), os.RemoveAll(tmp))
}

func copyFile(src, dst string) (err error) {
	in, err := os.Open(src)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	out, err := os.Create(dst)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	_, err = io.Copy(out, in)
	return err
}
