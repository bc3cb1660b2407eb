package checkout

import (
	"os"
	"path/filepath"
	"testing"
)

func TestRoot(t *testing.T) {
	t.Parallel()
	dir, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "test", "checkout", "checkout_test.go")); err != nil {
		t.Error(err)
	}
}

func TestRoot_isNotAnotherModule(t *testing.T) {
	t.Parallel()
	dir, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := root(filepath.Join(dir, "test", "peers")); err != nil || got != dir {
		t.Errorf("got %s, %v, want %s", got, err, dir)
	}
	if got, err := root(t.TempDir()); err == nil {
		t.Errorf("outside the repository: %s", got)
	}
}
