package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/kopia/kopia/repo"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/storage"
)

// loadConnection reads the file of a connection. Either its storage is set, or its server. The path of the cache is absolute.
func loadConnection(configFile string) (*repo.LocalConfig, error) {
	// The path of the cache is relative to the file, whose name may be relative to the working directory.
	path, err := filepath.Abs(configFile)
	if err != nil {
		return nil, err
	}
	lc, err := repo.LoadConfigFromFile(path)
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
