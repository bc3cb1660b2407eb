package engine

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/content"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/storage"
)

// Connection is an open repository: kopia's, and what Varve needs beside it. It is safe for concurrent use.
type Connection struct {
	Kopia repo.DirectRepository
	// id is the unique ID of the repository that was opened. kopia reads the format again later, and may then find another
	// repository's.
	id []byte
	// direct reads past kopia where that is possible; otherwise nil.
	direct *directReader
	// cached says whether the connection has a cache.
	cached bool
	// Access is for further connections without a cache, and for maintenance and Status.
	Access *Access
	// CloseTimeout is for tests: how long Close waits for kopia; 0: 5 seconds.
	CloseTimeout time.Duration
	// noCache is why this connection does without its cache; nil if it has one, or was made without one.
	noCache error
	// cacheDirectory is where the cache is, and indexes watches over its copies of the indexes. dropped makes sure that it is emptied
	// once.
	cacheDirectory string
	indexes        *storage.CachedIndexes
	dropped        sync.Once

	lifetime *lifetime

	mu    sync.Mutex
	fatal error
}

// OpenConnection opens a repository. Tests pass a clock of their own; nil is this machine's clock.
func OpenConnection(ctx context.Context, a *Access, now func() time.Time) (*Connection, error) {
	caching, unusable := a.caching, storage.CheckCache(a.caching)
	if unusable == nil {
		unusable = storage.ExpireCachedFormat(caching)
	}
	if unusable != nil {
		caching = nil
	}
	st, err := a.OpenStorage(ctx)
	if err != nil {
		return nil, a.wrapOpenError(err)
	}
	v := storage.NewView(storage.NewPatient(st, a.patience), nil, nil)
	open := openView
	if caching != nil && caching.CacheDirectory != "" {
		open = openCached
	}
	c, err := open(ctx, v, a, caching, now)
	if err != nil {
		return nil, errors.Join(err, st.Close(ctx))
	}
	v.Own()
	if unusable != nil {
		c.noCache = unusable
	}
	return c, nil
}

// OpenView opens a repository as a view of its storage shows it, without a cache.
func OpenView(ctx context.Context, v *storage.View, a *Access, now func() time.Time) (*Connection, error) {
	return openView(ctx, v, a, nil, now)
}

func openView(ctx context.Context, v *storage.View, a *Access, caching *content.CachingOptions, now func() time.Time) (_ *Connection, err error) {
	file, remove, err := v.Configure(a.client, caching)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, remove()) }()
	c := &Connection{Access: a, cached: caching != nil && caching.CacheDirectory != "", lifetime: newLifetime()}
	rep, err := repo.Open(ctx, file, a.Password, &repo.Options{
		TimeNowFunc:         now,
		DoNotWaitForUpgrade: true,
		// Without this, kopia would end the process.
		OnFatalError: c.recordFailure,
	})
	if err != nil {
		return nil, a.wrapOpenError(explainAbsence(ctx, v, err))
	}
	direct, ok := rep.(repo.DirectRepository)
	if !ok {
		return nil, errors.Join(fmt.Errorf("%w: a %T is not a repository in a storage", errclass.Invalid, rep), rep.Close(ctx))
	}
	c.Kopia, c.id = direct, direct.UniqueID()
	if err := c.readDirectly(); err != nil {
		return nil, errors.Join(a.wrapOpenError(err), rep.Close(ctx))
	}
	return c, nil
}

// WrapOpenError wraps an error of opening the repository that has this name.
func WrapOpenError(name string, err error) error {
	switch {
	case errors.Is(err, repo.ErrInvalidPassword):
		return fmt.Errorf("open the repository of %s: %w", name, ErrPassword)
	case errors.Is(err, repo.ErrRepositoryUnavailableDueToUpgradeInProgress):
		return fmt.Errorf("open the repository of %s: %w: its format is being upgraded", name, errclass.Conflict)
	}
	return fmt.Errorf("open the repository of %s: %w", name, err)
}

// closeTimeout bounds how long Close waits for kopia, which stores a log for its developers and waits for that as long as it takes.
const closeTimeout = 5 * time.Second

// Close ends the connection. The repository must not be used afterwards. Closing it again does nothing. What was written is durable
// before: if the storage does not answer, Close returns all the same, and what it waits for goes on alone. A backup or a restore that
// still runs, because its caller has abandoned it, keeps the storage open until it ends.
func (c *Connection) Close(ctx context.Context) error {
	if !c.lifetime.end() {
		return nil // kopia counts how often it was opened and closed.
	}
	done := make(chan error, 1)
	go func() {
		<-c.lifetime.unused
		c.recordIndexes()
		done <- c.Kopia.Close(ctx)
	}()
	timer := time.NewTimer(cmp.Or(c.CloseTimeout, closeTimeout))
	defer timer.Stop()
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("close the repository: %w", err)
		}
	case <-timer.C:
	}
	return nil
}

// WithoutCache says why the connection does without its cache, which makes it slower; nil if it has one, or was made without one.
func (c *Connection) WithoutCache() error { return c.noCache }

// recordFailure keeps the first reason why the repository can no longer be used.
func (c *Connection) recordFailure(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fatal == nil {
		c.fatal = err
	}
}

// Failure returns why the repository can no longer be used; nil if it can.
func (c *Connection) Failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fatal
}

// Reader returns a reader of what the repository holds.
func (c *Connection) Reader() *ContentReader {
	return &ContentReader{rep: c.Kopia, direct: c.direct, cached: c.cached, dropCache: c.dropCache, lifetime: c.lifetime}
}

// Source returns the source of a path. An empty host or user stands for that of this connection.
func (c *Connection) Source(host, user, path string) Source {
	me := c.Kopia.ClientOptions()
	return Source{Host: cmp.Or(host, me.Hostname), User: cmp.Or(user, me.Username), Path: path}
}

// ID distinguishes the repository from all others, even after it was moved.
func (c *Connection) ID() string { return hex.EncodeToString(c.id) }

// CheckNotReplaced fails if the storage no longer has the repository that this connection opened.
func (c *Connection) CheckNotReplaced(ctx context.Context) error {
	return storage.CheckRepository(ctx, c.Kopia.BlobReader(), c.id)
}

// ReadOnly says whether the connection was made for reading only.
func (c *Connection) ReadOnly() bool { return c.Kopia.ClientOptions().ReadOnly }

// Change changes manifests: all of them, or none.
func (c *Connection) Change(ctx context.Context, purpose string, do func(context.Context, repo.DirectRepositoryWriter) error) error {
	if err := c.CheckWritable(ctx); err != nil {
		return err
	}
	err := repo.DirectWriteSession(ctx, c.Kopia, repo.WriteSessionOptions{Purpose: "varve " + purpose}, do)
	return errors.Join(err, c.Kopia.Refresh(ctx))
}
