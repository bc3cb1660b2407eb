package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/format"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/storage"
)

// loadConnection reads the file of a connection. Either its storage is set, or its server.
func loadConnection(configFile string) (*repo.LocalConfig, error) {
	lc, err := repo.LoadConfigFromFile(configFile)
	if err == nil && lc.Storage == nil && lc.APIServer == nil {
		err = errors.New("it names no storage")
	}
	var file *fs.PathError
	switch {
	case errors.As(err, &file):
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("%w: it is not what connecting writes: connect again: %w", errclass.Invalid, err)
	}
	return lc, nil
}

// CheckReachable fails if the file of a connection is broken, or if its storage is an S3 server that does not answer.
func CheckReachable(ctx context.Context, configFile string, timeout time.Duration) error {
	lc, err := loadConnection(configFile)
	if err != nil || lc.Storage == nil {
		return err
	}
	return storage.CheckReachable(ctx, *lc.Storage, timeout)
}

// createBesideConfig makes an empty file in the directory of configFile, and that directory if necessary. It has to be the same
// directory because the path of the cache is stored relative to the file.
func createBesideConfig(configFile string) (string, error) {
	dir := filepath.Dir(configFile)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	f, err := os.CreateTemp(dir, ".connect-*.config")
	if err != nil {
		return "", err
	}
	return f.Name(), f.Close()
}

// ConnectedTo returns the location that configFile names, without its keys, in the form of Location.String. The error is
// fs.ErrNotExist if there is no such file, and errclass.Invalid if Connect did not write it.
func ConnectedTo(configFile string) (string, error) {
	lc, err := loadConnection(configFile)
	if err != nil {
		return "", fmt.Errorf("connection %s: %w", configFile, err)
	}
	if lc.Storage == nil {
		return lc.APIServer.BaseURL, nil
	}
	return storage.Describe(*lc.Storage), nil
}

// explainAbsence returns err, or errclass.NotFound if the reason for err is that the repository of a connection no longer exists:
// for instance because the directory is empty and nothing is mounted there.
func explainAbsence(ctx context.Context, configFile string, err error) error {
	if !errors.Is(err, blob.ErrBlobNotFound) {
		return err
	}
	lc, broken := repo.LoadConfigFromFile(configFile)
	if broken != nil || lc.Storage == nil {
		return err
	}
	st, closed := storage.OpenConnected(ctx, *lc.Storage)
	if closed != nil {
		return err
	}
	defer st.Close(ctx) //nolint:errcheck // nothing was written
	if _, absent := st.GetMetadata(ctx, format.KopiaRepositoryBlobID); !errors.Is(absent, blob.ErrBlobNotFound) {
		return err
	}
	return fmt.Errorf("%w: no repository is in %s any more", errclass.NotFound, storage.Describe(st.ConnectionInfo()))
}
