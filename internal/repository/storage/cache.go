package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
	"unicode/utf8"

	"github.com/kopia/kopia/repo/content"
	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/errclass"
)

// MinCacheBytes is the free space that a cache must have. kopia keeps the indexes in it, and fails if they do not fit.
const MinCacheBytes = 64 << 20

// CheckCache says why a cache cannot be used; nil if it can, or if there is none.
func CheckCache(c *content.CachingOptions) error {
	if c == nil || c.CacheDirectory == "" {
		return nil
	}
	// kopia reads the path from JSON, which would make another one of it.
	if !utf8.ValidString(c.CacheDirectory) {
		return fmt.Errorf("%w: the path of the cache is not UTF-8: %q", errclass.Invalid, c.CacheDirectory)
	}
	if err := os.MkdirAll(c.CacheDirectory, 0o700); err != nil {
		return err
	}
	if err := unix.Access(c.CacheDirectory, unix.W_OK|unix.X_OK); err != nil {
		return &os.PathError{Op: "write to", Path: c.CacheDirectory, Err: err}
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(c.CacheDirectory, &fs); err != nil {
		return fmt.Errorf("free space of %s: %w", c.CacheDirectory, os.NewSyscallError("statfs", err))
	}
	if free := int64(fs.Bavail) * fs.Frsize; fs.Blocks > 0 && free < MinCacheBytes {
		return fmt.Errorf("the file system of %s has %d MiB free, less than %d: %w", c.CacheDirectory, free>>20, MinCacheBytes>>20, unix.ENOSPC)
	}
	return nil
}

// ExpireCachedFormat makes a cache's copy of the format so old that the next connection reads the format from the storage. kopia
// trusts the cache for 15 minutes. The files stay, because kopia fails if a file that it has just written is gone, in this process
// or in another one.
func ExpireCachedFormat(c *content.CachingOptions) error {
	if c == nil || c.CacheDirectory == "" {
		return nil
	}
	return DateCachedFormat(c.CacheDirectory, time.Unix(0, 0))
}

// DateCachedFormat sets the time of a cache's copy of the format, if there is one.
func DateCachedFormat(cache string, at time.Time) error {
	for _, id := range FormatBlobs {
		err := os.Chtimes(filepath.Join(cache, string(id)), at, at)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("date the repository's format in the cache: %w", err)
		}
	}
	return nil
}
