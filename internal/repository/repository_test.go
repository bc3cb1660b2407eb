package repository

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/varvebackup/varve/internal/repository/storage"
)

// TestMain makes property tests cheap unless somebody sets how thorough they are: each step stores and compares disks.
func TestMain(m *testing.M) {
	storage.Register()
	progressEvery = 0
	if path := os.Getenv(childJob); path != "" {
		if err := child(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	flag.Parse()
	given := map[string]bool{}
	flag.Visit(func(f *flag.Flag) { given[f.Name] = true })
	for name, value := range map[string]string{"rapid.checks": "8", "rapid.steps": "12"} {
		if !given[name] {
			if err := flag.Set(name, value); err != nil {
				panic(err)
			}
		}
	}
	os.Exit(m.Run())
}

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
	if err := Connect(tb.Context(), configFile, at, testPassword, ConnectOptions{Host: "host", User: "varve"}); err != nil {
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

// soak asks for everything that takes long.
var soak = os.Getenv("VARVE_TEST_SOAK") != ""

// setting returns a number from the environment.
func setting(tb testing.TB, name string, otherwise int64) int64 {
	tb.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		tb.Fatalf("%s: %v", name, err)
	}
	return n
}
