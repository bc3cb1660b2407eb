package cache_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/varvebackup/varve/images/internal/cache"
)

func TestKeyKeepsInputsApart(t *testing.T) {
	t.Parallel()
	if cache.Key("ab", "c") == cache.Key("a", "bc") {
		t.Error("two lists of inputs have one key")
	}
}

func TestDirBuildsOnceForAll(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var built atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			// Every goroutine has its own Cache, as every process has.
			entry, err := cache.Open(dir).Dir(t.Context(), "k", "a", func(tmp string) error {
				built.Add(1)
				return os.WriteFile(filepath.Join(tmp, "f"), []byte("x"), 0o600)
			})
			if err != nil {
				t.Error(err)
				return
			}
			if text, err := os.ReadFile(filepath.Join(entry, "f")); err != nil || string(text) != "x" {
				t.Errorf("entry holds %q, %v", text, err)
			}
		})
	}
	wg.Wait()
	if n := built.Load(); n != 1 {
		t.Errorf("built %d times", n)
	}
}

func TestDirLeavesNothingOfAFailure(t *testing.T) {
	t.Parallel()
	c, broken := cache.Open(t.TempDir()), errors.New("broken")
	_, err := c.Dir(t.Context(), "k", "a", func(tmp string) error {
		return errors.Join(os.WriteFile(filepath.Join(tmp, "half"), nil, 0o600), broken)
	})
	if !errors.Is(err, broken) {
		t.Fatalf("error %v", err)
	}
	entry, err := c.Dir(t.Context(), "k", "a", func(string) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(entry, "half")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the failed build's file is in the entry: %v", err)
	}
}

func TestDirWaitsNoLongerThanItsContext(t *testing.T) {
	t.Parallel()
	c := cache.Open(t.TempDir())
	_, err := c.Dir(t.Context(), "k", "a", func(string) error {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := c.Dir(ctx, "k", "a", func(string) error { t.Error("built while locked"); return nil })
		if !errors.Is(err, context.Canceled) {
			t.Errorf("waiting with a context that ended: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestOldEntriesGo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := cache.Open(dir)
	for i := range 10 {
		if _, err := c.Dir(t.Context(), "k", strconv.Itoa(i), func(string) error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := filepath.Glob(filepath.Join(dir, "k", "?"))
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 4 || filepath.Base(entries[3]) != "9" {
		t.Errorf("entries left: %v", entries)
	}
}

func TestHashTreeSeesContentNameAndExecutableBit(t *testing.T) {
	t.Parallel()
	hash := func(name, content string, mode os.FileMode) string {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), mode); err != nil {
			t.Fatal(err)
		}
		sum, err := cache.HashTree(dir)
		if err != nil {
			t.Fatal(err)
		}
		return sum
	}
	base := hash("a", "x", 0o644)
	if base != hash("a", "x", 0o640) {
		t.Error("the umask shows in the hash")
	}
	for what, other := range map[string]string{
		"content": hash("a", "y", 0o644), "name": hash("b", "x", 0o644), "executable bit": hash("a", "x", 0o755),
	} {
		if other == base {
			t.Errorf("%s does not show in the hash", what)
		}
	}
}
