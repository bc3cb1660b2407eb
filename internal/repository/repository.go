package repository

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/kopia/kopia/repo"
)

// Repository is an open repository.
type Repository struct {
	rep repo.DirectRepository
	// configFile and password are for connections that do without a cache.
	configFile, password string

	mu    sync.Mutex
	fatal error
}

// Open opens the repository that the configuration file names, as Connect wrote it. If its format or an index is damaged, the error
// is ErrCorrupt and Repair may mend it.
func Open(ctx context.Context, configFile, password string) (*Repository, error) {
	if err := reach(ctx, configFile, 0); err != nil {
		return nil, openError(configFile, err)
	}
	r, err := openConfig(ctx, configFile, configFile, password)
	if err == nil {
		return r, nil
	}
	// kopia's error does not tell damage from the rest: a look at the blobs does.
	i, problem := inspect(ctx, configFile, password)
	if problem != nil {
		return nil, err
	}
	if damage := errors.Join(i.damage(), i.Close(ctx)); damage != nil {
		return nil, fmt.Errorf("open the repository of %s: %w", configFile, damage)
	}
	return nil, err
}

// openConfig opens the repository of configFile; errors call it name.
func openConfig(ctx context.Context, configFile, name, password string) (*Repository, error) {
	r := &Repository{configFile: configFile, password: password}
	rep, err := repo.Open(ctx, configFile, password, &repo.Options{
		DoNotWaitForUpgrade: true,
		// Without this kopia would end the process.
		OnFatalError: r.fail,
	})
	if err != nil {
		return nil, openError(name, gone(ctx, configFile, err))
	}
	direct, ok := rep.(repo.DirectRepository)
	if !ok {
		return nil, errors.Join(fmt.Errorf("%w: %s connects to a kopia server: connect to its storage instead", ErrInvalid, name), rep.Close(ctx))
	}
	r.rep = direct
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

// Close ends the connection. Nothing may use the repository any more.
func (r *Repository) Close(ctx context.Context) error {
	if err := r.rep.Close(ctx); err != nil {
		return fmt.Errorf("close the repository: %w", err)
	}
	return nil
}

// fail keeps the first reason why the repository cannot be used any more.
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

func (r *Repository) reader() contentReader { return &refreshing{rep: r.rep} }

// Source is the source of a path, of this connection's host and user unless others are given.
func (r *Repository) Source(host, user, path string) Source {
	me := r.rep.ClientOptions()
	return Source{Host: cmp.Or(host, me.Hostname), User: cmp.Or(user, me.Username), Path: path}
}
