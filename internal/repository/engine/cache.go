package engine

import (
	"context"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/content"
	"github.com/minio/minio-go/v7"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/storage"
)

// The cache is never believed over the storage. Its copies of the indexes are compared with their recorded checksums
// before kopia maps them. kopia checks what it takes from the other parts, but not that it could be decoded when it was
// put there: what a storage returned cut or changed once would fail for good. So if the repository cannot be opened
// with the cache, but with an empty one, the parts of the cache are made anew. A read that fails, but does not past the
// cache, empties it.

// openCached opens a repository with a cache. If the cache cannot be mended, the connection goes without one.
func openCached(ctx context.Context, v *storage.View, a *Access, caching *content.CachingOptions, now func() time.Time) (*Connection, error) {
	indexes := storage.ExamineCachedIndexes(caching.CacheDirectory)
	if indexes.Trusted() {
		c, err := openView(ctx, v, a, caching, now)
		if err == nil {
			return c.useCache(caching.CacheDirectory, indexes), nil
		}
		if !mayComeFromCache(ctx, err) {
			return nil, err
		}
		indexes.DistrustAll()
	}
	err := renewCache(ctx, v, a, caching, indexes, now)
	if err == nil {
		var c *Connection
		if c, err = openView(ctx, v, a, caching, now); err == nil {
			return c.useCache(caching.CacheDirectory, indexes), nil
		}
		err = &storage.CacheError{Directory: caching.CacheDirectory, Err: err}
	}
	if cache := (*storage.CacheError)(nil); !errors.As(err, &cache) {
		return nil, err // it is the storage's
	}
	c, bad := openView(ctx, v, a, nil, now)
	if bad != nil {
		return nil, bad
	}
	c.noCache = err
	return c, nil
}

// renewCache rebuilds the parts of a cache that cannot be trusted. A storage.CacheError means that the cache itself
// failed. Any other error means that the repository cannot be opened even with an empty cache.
func renewCache(ctx context.Context, v *storage.View, a *Access, caching *content.CachingOptions, indexes *storage.CachedIndexes, now func() time.Time) error {
	if filepath.IsAbs(os.Getenv("KOPIA_CACHE_DIRECTORY")) { // kopia would take that one instead of the new one
		return &storage.CacheError{Directory: caching.CacheDirectory, Err: errors.New("it is damaged: remove what is in it")}
	}
	err := indexes.Renew(func(cache string) error {
		empty := *caching
		empty.CacheDirectory = cache
		c, err := openView(ctx, v, a, &empty, now)
		if err != nil {
			return err
		}
		return c.Close(ctx)
	})
	if err != nil {
		return err
	}
	return storage.DropCachedBlobs(caching.CacheDirectory)
}

// mayComeFromCache says whether an error of opening a repository may come from the cache. Storages say what is wrong
// with them.
func mayComeFromCache(ctx context.Context, err error) bool {
	var answer minio.ErrorResponse
	var request *url.Error
	class := errclass.Of(err)
	return ctx.Err() == nil && (class == errclass.None || class == errclass.Corrupt) && !errors.As(err, &answer) && !errors.As(err, &request) &&
		!errors.Is(err, repo.ErrInvalidPassword) && !errors.Is(err, repo.ErrRepositoryUnavailableDueToUpgradeInProgress)
}

// useCache makes the connection watch over its cache.
func (c *Connection) useCache(directory string, indexes *storage.CachedIndexes) *Connection {
	c.cacheDirectory, c.indexes = directory, indexes
	c.recordIndexes()
	return c
}

// recordIndexes records the local indexes, which are read again otherwise.
func (c *Connection) recordIndexes() {
	if c.indexes != nil {
		_ = c.indexes.Record()
	}
}

// dropCache empties the cache. It does so once: it returns false if the cache was emptied before, or if there is none.
func (c *Connection) dropCache() (dropped bool) {
	if c.cacheDirectory == "" {
		return false
	}
	c.dropped.Do(func() { dropped = storage.DropCachedBlobs(c.cacheDirectory) == nil })
	return dropped
}
