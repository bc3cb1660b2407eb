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

	mu    sync.Mutex
	fatal error
}

// Open opens the repository that the configuration file names, as Connect wrote it.
func Open(ctx context.Context, configFile, password string) (*Repository, error) {
	if err := reach(ctx, configFile, 0); err != nil {
		return nil, openError(configFile, err)
	}
	r := &Repository{}
	rep, err := repo.Open(ctx, configFile, password, &repo.Options{
		DoNotWaitForUpgrade: true,
		// Without this kopia would end the process.
		OnFatalError: r.fail,
	})
	if err != nil {
		return nil, openError(configFile, gone(ctx, configFile, err))
	}
	direct, ok := rep.(repo.DirectRepository)
	if !ok {
		return nil, errors.Join(fmt.Errorf("%w: %s connects to a kopia server: connect to its storage instead", ErrInvalid, configFile), rep.Close(ctx))
	}
	r.rep = direct
	return r, nil
}

func openError(configFile string, err error) error {
	switch {
	case errors.Is(err, repo.ErrInvalidPassword):
		return fmt.Errorf("open the repository of %s: %w", configFile, ErrPassword)
	case errors.Is(err, repo.ErrRepositoryUnavailableDueToUpgradeInProgress):
		return fmt.Errorf("open the repository of %s: %w: its format is being upgraded", configFile, ErrConflict)
	}
	return fmt.Errorf("open the repository of %s: %w", configFile, err)
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
