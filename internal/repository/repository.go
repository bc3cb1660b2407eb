package repository

import (
	"context"
	"errors"
	"fmt"

	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/internal/repository/verify"
)

// Create makes a repository at an empty location. It is always encrypted.
func Create(ctx context.Context, at Location, password string, o CreateOptions) error {
	return engine.Create(ctx, at, password, o)
}

// Connect writes configFile, which Open reads. It replaces an existing file once the password has opened the repository; until
// then the old connection stays. The file holds the keys of the storage, but not the password.
func Connect(ctx context.Context, configFile string, at Location, password string, o ConnectOptions) error {
	return engine.Connect(ctx, configFile, at, password, o)
}

// ConnectedTo returns the location that configFile names, without its keys, in the form of Location.String. The error is
// fs.ErrNotExist if there is no such file, and errclass.Invalid if Connect did not write it.
func ConnectedTo(configFile string) (string, error) { return engine.ConnectedTo(configFile) }

// Repository is an open repository.
type Repository struct {
	conn *engine.Connection
}

// Open opens the repository that configFile names, as Connect wrote it. If the format or an index is damaged, the error is
// errclass.Corrupt, and Repair may mend it. If the cache cannot be used, Open goes on without it, and WithoutCache says why.
func Open(ctx context.Context, configFile, password string) (*Repository, error) {
	a, err := engine.LoadAccess(configFile, password)
	if err == nil {
		err = a.CheckReachable(ctx, 0)
	}
	if err != nil {
		return nil, engine.WrapOpenError(configFile, err)
	}
	return openAccess(ctx, a)
}

// OpenLocation is Connect and Open at once, for a program that keeps no configuration, such as a pod whose file system is
// read-only. The password and the keys of the storage stay in memory. Nothing is written on this machine except the cache, if
// there is one; maintenance also makes a lock file in the system's directory for temporary files.
func OpenLocation(ctx context.Context, at Location, password string, o ConnectOptions) (*Repository, error) {
	a, err := engine.ConnectInMemory(ctx, at, password, o)
	if err != nil {
		return nil, err
	}
	return openAccess(ctx, a)
}

// CheckPassword checks that a password opens the repository at a location, and returns what Repository.ID does. It
// reads the format and no index, so that it costs the same whatever the repository holds; of the options it uses
// ReadOnly, Host and User. What is damaged beside the format, OpenLocation notices.
func CheckPassword(ctx context.Context, at Location, password string, o ConnectOptions) (id string, err error) {
	return engine.CheckPassword(ctx, at, password, o)
}

func openAccess(ctx context.Context, a *engine.Access) (*Repository, error) {
	c, err := engine.OpenConnection(ctx, a, nil)
	if err == nil {
		return &Repository{conn: c}, nil
	}
	// kopia's error does not tell damage from other failures; inspecting the blobs does.
	i, problem := verify.Inspect(ctx, a)
	switch {
	case errors.Is(err, ErrPassword) && errors.Is(problem, ErrPassword):
		return nil, problem
	case problem != nil:
		return nil, err
	}
	if damage := errors.Join(i.Damage(), i.Close(ctx)); damage != nil {
		return nil, fmt.Errorf("open the repository of %s: %w", a.Name, damage)
	}
	return nil, err
}

// Close ends the connection. The repository must not be used afterwards.
func (r *Repository) Close(ctx context.Context) error { return r.conn.Close(ctx) }

// WithoutCache says why the connection does without its cache, which makes it slower; nil if it has one, or was made without one.
func (r *Repository) WithoutCache() error { return r.conn.WithoutCache() }

// ReadOnly says whether the connection was made for reading only.
func (r *Repository) ReadOnly() bool { return r.conn.ReadOnly() }

// ID distinguishes the repository from all others, even after it was moved.
func (r *Repository) ID() string { return r.conn.ID() }

// Source returns the source of a path. An empty host or user stands for that of this connection.
func (r *Repository) Source(host, user, path string) Source {
	return r.conn.Source(host, user, path)
}
