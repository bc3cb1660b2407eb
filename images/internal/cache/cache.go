// Package cache keeps the results of expensive steps in directories that are named by the inputs of the step.
//
// An entry is built in a temporary directory and renamed into place when it is complete, so an entry that exists can
// be trusted. Any number of processes and goroutines may ask for the same entry: each entry has a file lock that lets
// one of them build it while the others wait. A builder that dies leaves a temporary directory, which the next builder removes.
package cache

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// keep is how many entries of a kind survive. Older ones are removed when a new one is built.
const keep = 4

// poll is how often a waiter checks whether the lock of an entry is free.
const poll = 100 * time.Millisecond

// Cache is a directory of entries, <dir>/<kind>/<key>/.
type Cache struct{ dir string }

// Open returns the cache in dir, which is created on first use.
func Open(dir string) *Cache { return &Cache{dir: dir} }

// Default returns the cache in the user's cache directory.
func Default() (*Cache, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return nil, fmt.Errorf("find cache directory: %w", err)
	}
	return Open(filepath.Join(dir, "varve", "image")), nil
}

// Key names an entry by its inputs. Inputs are length-prefixed, so no two lists of inputs share a key by concatenation.
func Key(inputs ...string) string {
	h := sha256.New()
	for _, in := range inputs {
		fmt.Fprintf(h, "%d:%s", len(in), in)
	}
	return hex.EncodeToString(h.Sum(nil))[:24]
}

// HashFile returns the SHA-256 of a file's content in hex.
func HashFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	_, err = io.Copy(h, f)
	if err := errors.Join(err, f.Close()); err != nil {
		return "", fmt.Errorf("hash %s: %w", path, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// HashTree returns one SHA-256 in hex over the names, executable bits and contents of all files below dir.
func HashTree(dir string) (string, error) {
	h := sha256.New()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		sum, err := HashFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		fmt.Fprintf(h, "%q %o %s\n", name, info.Mode().Perm()&0o111, sum)
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("hash tree %s: %w", dir, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// Dir returns the directory of an entry. If the entry does not exist, it builds it first: build fills the directory
// that it is given, and what it leaves there is the entry. If build fails, nothing remains.
func (c *Cache) Dir(ctx context.Context, kind, key string, build func(dir string) error) (string, error) {
	kindDir := filepath.Join(c.dir, kind)
	entry := filepath.Join(kindDir, key)
	if touchEntry(entry) {
		return entry, nil
	}
	if err := os.MkdirAll(kindDir, 0o755); err != nil {
		return "", fmt.Errorf("make cache: %w", err)
	}
	unlock, err := lockFile(ctx, entry+".lock")
	if err != nil {
		return "", fmt.Errorf("lock cache entry %s/%s: %w", kind, key, err)
	}
	defer unlock()
	if touchEntry(entry) { // Somebody else built it while this process waited.
		return entry, nil
	}
	tmp := entry + ".tmp"
	if err := os.RemoveAll(tmp); err != nil {
		return "", fmt.Errorf("remove what an interrupted build left: %w", err)
	}
	if err := os.Mkdir(tmp, 0o755); err != nil {
		return "", fmt.Errorf("make cache entry: %w", err)
	}
	if err := build(tmp); err != nil {
		return "", errors.Join(err, os.RemoveAll(tmp))
	}
	if err := os.Rename(tmp, entry); err != nil {
		return "", fmt.Errorf("publish cache entry: %w", err)
	}
	return entry, c.pruneKind(kindDir, key)
}

// touchEntry reports whether an entry exists, and marks it as used now, which prune checks.
func touchEntry(entry string) bool {
	if info, err := os.Stat(entry); err != nil || !info.IsDir() {
		return false
	}
	now := time.Now()
	// A cache that is not writable (another user's) can still be used.
	_ = os.Chtimes(entry, now, now)
	return true
}

// lockFile takes an exclusive lock on a file, waiting for its holder until ctx ends.
func lockFile(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			// Closing the descriptor drops the lock. The file stays, because removing it would let two processes lock two files.
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, errors.Join(err, f.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), f.Close())
		case <-time.After(poll):
		}
	}
}

// pruneKind removes all entries of a kind except the most recently used ones.
func (c *Cache) pruneKind(kindDir, current string) error {
	names, err := os.ReadDir(kindDir)
	if err != nil {
		return fmt.Errorf("prune cache: %w", err)
	}
	type entry struct {
		name string
		used time.Time
	}
	var entries []entry
	for _, n := range names {
		info, err := n.Info()
		if err != nil || !n.IsDir() || strings.HasSuffix(n.Name(), ".tmp") || n.Name() == current {
			continue // Another process may remove or rename it: leave it alone.
		}
		entries = append(entries, entry{n.Name(), info.ModTime()})
	}
	slices.SortFunc(entries, func(a, b entry) int { return cmp.Or(b.used.Compare(a.used), cmp.Compare(a.name, b.name)) })
	for i, e := range entries {
		if i < keep-1 {
			continue
		}
		if err := os.RemoveAll(filepath.Join(kindDir, e.name)); err != nil {
			return fmt.Errorf("prune cache: %w", err)
		}
	}
	return nil
}
