package repository

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A cache that cannot be made is done without: here a file is in its place.
func TestACacheThatCannotBeUsed(t *testing.T) {
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
