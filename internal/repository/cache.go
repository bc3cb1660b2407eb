package repository

import (
	"fmt"
	"os"

	"github.com/kopia/kopia/repo/content"
	"golang.org/x/sys/unix"
)

// minCacheBytes is the free space that a cache must have. kopia keeps the indexes in it, and fails if they do not fit.
const minCacheBytes = 64 * mib

// usableCache says why a cache cannot be used; nil if it can, or if there is none.
func usableCache(c *content.CachingOptions) error {
	if c == nil || c.CacheDirectory == "" {
		return nil
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
	if free := int64(fs.Bavail) * fs.Frsize; fs.Blocks > 0 && free < minCacheBytes {
		return fmt.Errorf("the file system of %s has %d MiB free, less than %d: %w", c.CacheDirectory, free/mib, minCacheBytes/mib, unix.ENOSPC)
	}
	return nil
}
