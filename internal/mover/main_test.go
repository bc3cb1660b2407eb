package mover

import (
	"context"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/varvebackup/varve/internal/repository"
	"github.com/varvebackup/varve/internal/repository/storage"
)

func TestMain(m *testing.M) {
	storage.Register()
	goleak.VerifyTestMain(m)
}

const testPassword = "a password for tests"

// newRepository makes a repository and opens it until the test ends.
func newRepository(tb testing.TB) *repository.Repository {
	tb.Helper()
	return openRepository(tb, connectRepository(tb, tb.TempDir()))
}

// connectRepository makes a repository in dir/blobs, and returns the configuration of a connection to it.
func connectRepository(tb testing.TB, dir string) (config string) {
	tb.Helper()
	location := repository.Location{Directory: filepath.Join(dir, "blobs")}
	config = filepath.Join(dir, "config")
	if err := repository.Create(tb.Context(), location, testPassword, repository.CreateOptions{}); err != nil {
		tb.Fatal(err)
	}
	if err := repository.Connect(tb.Context(), config, location, testPassword, repository.ConnectOptions{Host: "host", User: "varve"}); err != nil {
		tb.Fatal(err)
	}
	return config
}

func openRepository(tb testing.TB, config string) *repository.Repository {
	tb.Helper()
	r, err := repository.Open(tb.Context(), config, testPassword)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := r.Close(context.WithoutCancel(tb.Context())); err != nil {
			tb.Error(err)
		}
	})
	return r
}
