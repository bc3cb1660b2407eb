package repository

import (
	"context"
	"path/filepath"
	"testing"
)

const testPassword = "a password for tests"

// newRepository makes a repository in a directory of its own and opens it.
func newRepository(tb testing.TB) (r *Repository, configFile string) {
	tb.Helper()
	dir := tb.TempDir()
	at := Location{Directory: filepath.Join(dir, "blobs")}
	configFile = filepath.Join(dir, "config", "repository.config")
	if err := Create(tb.Context(), at, testPassword, CreateOptions{}); err != nil {
		tb.Fatal(err)
	}
	if err := Connect(tb.Context(), configFile, at, testPassword, ConnectOptions{CacheDirectory: filepath.Join(dir, "cache"), Host: "host", User: "varve"}); err != nil {
		tb.Fatal(err)
	}
	return open(tb, configFile), configFile
}

func open(tb testing.TB, configFile string) *Repository {
	tb.Helper()
	r, err := Open(tb.Context(), configFile, testPassword)
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
