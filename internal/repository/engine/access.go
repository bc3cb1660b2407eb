package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/format"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/storage"
)

// Access is what it takes to open a repository: the storage with its keys, the password, and what this machine is called there. It
// stays in memory.
type Access struct {
	// Name is what errors call the repository by: the file of the connection, or the location.
	Name string
	// ConfigFile is the file that the access was read from; "" if there is none.
	ConfigFile string
	Password   string

	storage  blob.ConnectionInfo
	client   repo.ClientOptions
	caching  *content.CachingOptions
	patience *storage.Patience
}

// LoadAccess reads the access from the file that Connect wrote.
func LoadAccess(configFile, password string) (*Access, error) {
	lc, err := loadConnection(configFile)
	if err != nil {
		return nil, err
	}
	if lc.Storage == nil {
		return nil, fmt.Errorf("%w: it connects to a kopia server: connect to its storage instead", errclass.Invalid)
	}
	return &Access{Name: configFile, ConfigFile: configFile, Password: password, storage: *lc.Storage, client: lc.ClientOptions, caching: lc.Caching}, nil
}

// ConnectInMemory is Connect without a file: it returns what Connect writes. The first OpenConnection checks the password.
func ConnectInMemory(ctx context.Context, at storage.Location, password string, o ConnectOptions) (*Access, error) {
	st, caching, err := openForConnection(ctx, at, password, &o)
	if err != nil {
		return nil, fmt.Errorf("connect to the repository in %s: %w", at, err)
	}
	a := &Access{
		Name: at.String(), Password: password, storage: st.ConnectionInfo(), client: repo.ClientOptions{Hostname: o.Host, Username: o.User, ReadOnly: o.ReadOnly},
		patience: o.Patience,
	}
	if err := st.Close(ctx); err != nil {
		return nil, fmt.Errorf("connect to the repository in %s: %w", at, err)
	}
	if caching.CacheDirectory == "" {
		return a, nil
	}
	// kopia prefers what this variable says, and the directory that it uses must be the one that OpenConnection looks at.
	if dir := os.Getenv("KOPIA_CACHE_DIRECTORY"); filepath.IsAbs(dir) {
		caching.CacheDirectory = dir
	}
	// This process may change its working directory.
	if caching.CacheDirectory, err = filepath.Abs(caching.CacheDirectory); err != nil {
		return nil, fmt.Errorf("directory of the cache: %w", err)
	}
	a.caching = caching
	return a, nil
}

// CheckReachable fails if the storage is an S3 server that does not answer within the timeout; 0: 30 seconds.
func (a *Access) CheckReachable(ctx context.Context, timeout time.Duration) error {
	return storage.CheckReachable(ctx, a.storage, timeout)
}

// OpenStorage opens the storage, with the guard.
func (a *Access) OpenStorage(ctx context.Context) (blob.Storage, error) {
	return storage.OpenConnected(ctx, a.storage)
}

// wrapOpenError wraps an error of opening the repository.
func (a *Access) wrapOpenError(err error) error { return WrapOpenError(a.Name, err) }

// explainAbsence returns err, or errclass.NotFound if the reason for err is that the repository no longer exists: for instance
// because the directory is empty and nothing is mounted there.
func explainAbsence(ctx context.Context, st blob.Storage, err error) error {
	if !errors.Is(err, blob.ErrBlobNotFound) {
		return err
	}
	if _, absent := st.GetMetadata(ctx, format.KopiaRepositoryBlobID); !errors.Is(absent, blob.ErrBlobNotFound) {
		return err
	}
	return fmt.Errorf("%w: no repository is in %s any more", errclass.NotFound, storage.Describe(st.ConnectionInfo()))
}
