package repository

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/varvebackup/varve/internal/errclass"
)

// A connection does without a cache that cannot be made. Here a file is in its place.
func TestCache_thatCannotBeUsed(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	config := s.connect(t, "host", cached)
	cache := filepath.Join(s.dir, "host.cache")
	if err := os.RemoveAll(cache); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(cache, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := Open(t.Context(), config, testPassword)
	if err != nil {
		t.Fatal(err)
	}
	var path *fs.PathError
	if err := r.WithoutCache(); !errors.As(err, &path) || !strings.HasPrefix(path.Path, cache) {
		t.Errorf("without its cache because of %v", err)
	}
	disk := &memory{data: []byte("varve")}
	p, err := r.Backup(t.Context(), Request{Source: testSource, Time: time.Unix(1, 0), Disks: []DiskSource{disk.source(false)}})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Maintain(t.Context(), MaintenanceOptions{Mode: FullMaintenance, Exclusive: true}); err != nil {
		t.Error(err)
	}
	if st, err := r.Status(t.Context()); err != nil || st.ConfigFile != config {
		t.Errorf("%+v, %v", st, err)
	}
	if err := r.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(cache); err != nil {
		t.Fatal(err)
	}
	r = open(t, config)
	if err := r.WithoutCache(); err != nil {
		t.Error(err)
	}
	same(t, r, p, disk.data)
}

// Processes that start at once share the cache of their connection.
func TestCache_ofProcessesThatBeginAtOnce(t *testing.T) {
	t.Parallel()
	s := newMemorySite(t)
	config := s.connect(t, "machine", cached)
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 20 {
				r, err := s.open(t.Context(), config)
				if err == nil {
					err = errors.Join(r.WithoutCache(), r.Close(t.Context()))
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
}

// A path that JSON cannot hold would become another one on its way to kopia.
func TestCache_inADirectoryWhoseNameIsNoText(t *testing.T) {
	t.Parallel()
	above, at := t.TempDir(), Location{Directory: filepath.Join(t.TempDir(), "blobs")}
	if err := Create(t.Context(), at, testPassword, CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(above, "a\xffb")
	config := filepath.Join(dir, "repository.config")
	o := ConnectOptions{Host: "host", User: "varve", CacheDirectory: filepath.Join(dir, "cache"), CacheBytes: mib}
	if err := Connect(t.Context(), config, at, testPassword, o); err != nil {
		t.Fatal(err)
	}
	if err := open(t, config).WithoutCache(); !errors.Is(err, errclass.Invalid) {
		t.Errorf("without its cache because of %v", err)
	}
	if found, err := os.ReadDir(above); err != nil || len(found) != 1 {
		t.Errorf("%v, %v", found, err)
	}
}
