package repository

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"
)

// Repository is an open repository.
type Repository struct {
	rep repo.DirectRepository
	// id is the unique ID of the repository that was opened. kopia reads the format again later, and may then find another
	// repository's.
	id []byte
	// direct reads past kopia where that is possible; otherwise nil.
	direct *direct
	// cached says whether the connection has a cache.
	cached bool
	// configFile and password are for further connections without a cache, and for maintenance and Status.
	configFile, password string
	// storage is closed with the repository, if it is not part of the connection.
	storage blob.Storage
	// noCache is why this connection does without its cache; nil if it has one, or was made without one.
	noCache error

	mu    sync.Mutex
	fatal error
}

// Open opens the repository that configFile names, as Connect wrote it. If the format or an index is damaged, the error is
// ErrCorrupt, and Repair may mend it. If the cache cannot be used, Open goes on without it, and WithoutCache says why.
func Open(ctx context.Context, configFile, password string) (*Repository, error) {
	if err := reach(ctx, configFile, 0); err != nil {
		return nil, openError(configFile, err)
	}
	r, err := openConfig(ctx, configFile, password, nil)
	if err == nil {
		return r, nil
	}
	// kopia's error does not tell damage from other failures; inspecting the blobs does.
	i, problem := inspect(ctx, configFile, password)
	if problem != nil {
		return nil, err
	}
	if damage := errors.Join(i.damage(), i.Close(ctx)); damage != nil {
		return nil, fmt.Errorf("open the repository of %s: %w", configFile, damage)
	}
	return nil, err
}

// openConfig opens the repository of configFile. Tests pass a clock of their own; nil is this machine's clock.
func openConfig(ctx context.Context, configFile, password string, now func() time.Time) (*Repository, error) {
	c, err := repo.LoadConfigFromFile(configFile)
	if err != nil {
		return nil, openError(configFile, err)
	}
	unusable := usableCache(c.Caching)
	if unusable == nil {
		unusable = forgetFormat(c.Caching)
	}
	if unusable == nil || c.Storage == nil {
		return openFile(ctx, configFile, configFile, password, now)
	}
	st, err := blob.NewStorage(ctx, *c.Storage, false)
	if err != nil {
		return nil, openError(configFile, err)
	}
	v := &view{Storage: st}
	r, err := v.connect(ctx, c.ClientOptions, configFile, password, now)
	if err != nil {
		return nil, errors.Join(err, st.Close(ctx))
	}
	r.storage, r.noCache = st, unusable
	return r, nil
}

// openFile opens the repository of file, which stands for configFile: errors and maintenance use the name of the latter.
func openFile(ctx context.Context, file, configFile, password string, now func() time.Time) (*Repository, error) {
	r := &Repository{configFile: configFile, password: password}
	rep, err := repo.Open(ctx, file, password, &repo.Options{
		TimeNowFunc:         now,
		DoNotWaitForUpgrade: true,
		// Without this, kopia would end the process.
		OnFatalError: r.fail,
	})
	if err != nil {
		return nil, openError(configFile, gone(ctx, file, err))
	}
	direct, ok := rep.(repo.DirectRepository)
	if !ok {
		return nil, errors.Join(fmt.Errorf("%w: %s connects to a kopia server: connect to its storage instead", ErrInvalid, configFile), rep.Close(ctx))
	}
	r.rep, r.id = direct, direct.UniqueID()
	if err := r.readDirectly(ctx, file); err != nil {
		return nil, errors.Join(openError(configFile, err), rep.Close(ctx))
	}
	return r, nil
}

func openError(name string, err error) error {
	switch {
	case errors.Is(err, repo.ErrInvalidPassword):
		return fmt.Errorf("open the repository of %s: %w", name, ErrPassword)
	case errors.Is(err, repo.ErrRepositoryUnavailableDueToUpgradeInProgress):
		return fmt.Errorf("open the repository of %s: %w: its format is being upgraded", name, ErrConflict)
	}
	return fmt.Errorf("open the repository of %s: %w", name, err)
}

// Close ends the connection. The repository must not be used afterwards.
func (r *Repository) Close(ctx context.Context) error {
	err := r.rep.Close(ctx)
	if r.storage != nil {
		err = errors.Join(err, r.storage.Close(ctx))
	}
	if err != nil {
		return fmt.Errorf("close the repository: %w", err)
	}
	return nil
}

// WithoutCache says why the connection does without its cache, which makes it slower; nil if it has one, or was made without one.
func (r *Repository) WithoutCache() error { return r.noCache }

// fail keeps the first reason why the repository can no longer be used.
func (r *Repository) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fatal == nil {
		r.fatal = err
	}
}

func (r *Repository) failed() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fatal
}

func (r *Repository) reader() *refreshing {
	return &refreshing{rep: r.rep, direct: r.direct, cached: r.cached}
}

// Source returns the source of a path. An empty host or user stands for that of this connection.
func (r *Repository) Source(host, user, path string) Source {
	me := r.rep.ClientOptions()
	return Source{Host: cmp.Or(host, me.Hostname), User: cmp.Or(user, me.Username), Path: path}
}

// ID distinguishes the repository from all others, even after it was moved.
func (r *Repository) ID() string { return hex.EncodeToString(r.id) }
