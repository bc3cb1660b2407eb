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
