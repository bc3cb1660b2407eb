package storage

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/kopia/kopia/repo/blob"
)

// A blob in a directory is written as a file with another name, and renamed when it is complete. A process that is killed before
// that, or finds no space, leaves that file behind, and no list of blobs has it.

// unfinishedName matches the names of such files (kopia, repo/blob/filesystem, PutBlobInPath): those of blobs, and that of the
// file with the directory's layout.
var unfinishedName = regexp.MustCompile(`^(.+\.f|\.shards)\.tmp\.[0-9a-f]{16}$`)

// timeProbePrefix begins the name of a file that is made only for its time. It looks like an unfinished blob in case it is left
// behind.
const timeProbePrefix = "clock.f.tmp."

// CountUnfinished counts the blobs that are unfinished, whether somebody is writing them or not, and their bytes.
func CountUnfinished(ctx context.Context, st blob.Reader) (blobs, bytes int64, err error) {
	err = walkUnfinished(ctx, directoryOf(st), func(_ string, info fs.FileInfo) error {
		blobs++
		bytes += info.Size()
		return nil
	})
	return blobs, bytes, err
}

// RemoveUnfinished removes the unfinished blobs that have not changed for this long.
func RemoveUnfinished(ctx context.Context, st blob.Reader, age time.Duration) error {
	dir := directoryOf(st)
	if dir == "" {
		return nil // A bucket has none.
	}
	now, err := fileSystemTime(dir)
	if err != nil {
		return markFull(err)
	}
	return markFull(walkUnfinished(ctx, dir, func(path string, info fs.FileInfo) error {
		if now.Sub(info.ModTime()) < age {
			return nil
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove an unfinished blob: %w", err)
		}
		return nil
	}))
}

// walkUnfinished calls call for the unfinished blobs below dir. If dir is "", there are none.
func walkUnfinished(ctx context.Context, dir string, call func(path string, info fs.FileInfo) error) error {
	if dir == "" {
		return nil
	}
	dir, err := filepath.EvalSymlinks(dir) // The walk follows no symbolic links.
	if err != nil {
		return fmt.Errorf("look for unfinished blobs: %w", err)
	}
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && unfinishedName.MatchString(d.Name()) {
			var info fs.FileInfo
			if info, err = d.Info(); err == nil {
				err = call(path, info)
			}
		}
		if path != dir && errors.Is(err, fs.ErrNotExist) {
			err = nil // It was finished meanwhile.
		}
		if err != nil {
			return fmt.Errorf("look for unfinished blobs: %w", err)
		}
		return ctx.Err()
	})
}

// fileSystemTime returns the current time of a directory's file system. A file server's clock may differ from this machine's, and
// files have its time.
func fileSystemTime(dir string) (time.Time, error) {
	var unique [8]byte
	_, _ = rand.Read(unique[:]) // it never fails
	path := filepath.Join(dir, timeProbePrefix+hex.EncodeToString(unique[:]))
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return time.Time{}, fmt.Errorf("ask %s for its time: %w", dir, err)
	}
	_, err = f.WriteString("x") // An empty file may get the time of this machine.
	var info fs.FileInfo
	if err = errors.Join(err, f.Close()); err == nil {
		info, err = os.Stat(path)
	}
	if err = errors.Join(err, os.Remove(path)); err != nil {
		return time.Time{}, fmt.Errorf("ask %s for its time: %w", dir, err)
	}
	return info.ModTime(), nil
}
