package repository

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kopia/kopia/repo/blob"

	"github.com/varvebackup/varve/internal/repository/storage"
	"github.com/varvebackup/varve/test/verdict"
)

// cacheFiles returns the files in a cache that selected selects by their path in it.
func cacheFiles(tb testing.TB, cache string, selected func(path string) bool) (out []string) {
	tb.Helper()
	err := filepath.WalkDir(cache, func(path string, d fs.DirEntry, err error) error {
		if relative, _ := filepath.Rel(cache, path); err == nil && !d.IsDir() && selected(relative) {
			out = append(out, path)
		}
		return err
	})
	if err != nil || len(out) == 0 {
		tb.Fatalf("%v, %v", out, err)
	}
	return out
}

// rewrite replaces the content of files.
func rewrite(tb testing.TB, files []string, change func([]byte) []byte) {
	tb.Helper()
	for _, path := range files {
		data, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(path, change(data), 0o600)
		}
		if err != nil {
			tb.Fatal(err)
		}
	}
}

// Whatever a loss of power or a disk makes of a cache, nothing is lost by it: every command works as without it, and
// the next one, too.
func TestCache_damageIsMended(t *testing.T) {
	t.Parallel()
	damages := map[string]func([]byte) []byte{
		"empty": func([]byte) []byte { return nil },
		"cut":   func(data []byte) []byte { return data[:len(data)/2] },
		"changed": func(data []byte) []byte {
			for i := len(data) / 2; i < min(len(data)/2+2, len(data)); i++ {
				data[i] ^= 0x55
			}
			return data
		},
		"zeros": func(data []byte) []byte { return append(data[:len(data)/3], make([]byte, len(data)-len(data)/3)...) },
	}
	within := func(dir string) func(string) bool {
		return func(path string) bool { return strings.HasPrefix(path, dir+"/") && filepath.Base(path) != ".shards" }
	}
	places := map[string]func(string) bool{
		"local indexes": within("indexes"),
		"checksums":     func(path string) bool { return path == "varve.indexes" },
		"index blobs":   within("index-blobs"),
		"metadata":      within("metadata"),
		"parameters":    func(path string) bool { return filepath.Base(path) == ".shards" },
	}
	s := newSite(t)
	writer := s.opened(t, s.connect(t, "writer", !cached))
	disk, p := twoRegions(t, writer)
	next, err := writer.Backup(t.Context(), Request{Source: testSource, Time: s.now(), Disks: []DiskSource{disk.source(true)}})
	if err != nil {
		t.Fatal(err)
	}
	for where, selected := range places {
		for what, change := range damages {
			if where != "local indexes" && what != "empty" && what != "changed" {
				continue
			}
			name := strings.ReplaceAll(where+", "+what, " ", "-")
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				config := s.connect(t, name, cached)
				use := func() {
					t.Helper()
					r, err := Open(t.Context(), config, testPassword)
					if err != nil {
						t.Fatal(err)
					}
					if err := r.WithoutCache(); err != nil {
						t.Error(err)
					}
					points, err := r.List(t.Context(), nil)
					if err != nil || len(points) != 2 || points[0].ID != p.ID && points[1].ID != p.ID {
						verdict.Errorf(t, "%v, %v", points, err)
					}
					same(t, r, next, disk.data)
					if err := r.Close(context.WithoutCancel(t.Context())); err != nil {
						t.Error(err)
					}
				}
				use()
				files := cacheFiles(t, filepath.Join(s.dir, name+".cache"), selected)
				rewrite(t, files, change)
				use()
				if indexes := storage.ExamineCachedIndexes(filepath.Join(s.dir, name+".cache")); !indexes.Trusted() {
					t.Errorf("the local indexes are as bad as before: %+v", indexes)
				}
			})
		}
	}
}

// Copies of indexes that a process found damaged are replaced under another one that uses them.
func TestCache_isMendedUnderAReader(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	_, p := twoRegions(t, s.opened(t, s.connect(t, "writer", !cached)))
	config := s.connect(t, "machine", cached)
	reader := s.opened(t, config)
	before, err := reader.Image(t.Context(), p.Disks[0])
	if err != nil {
		t.Fatal(err)
	}
	want := make([]byte, before.Disk.Bytes)
	if err := before.ReadAt(t.Context(), want, 0); err != nil {
		t.Fatal(err)
	}
	if err := s.opened(t, config).Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, path := range cacheFiles(t, filepath.Join(s.dir, "machine.cache"), func(path string) bool { return strings.HasPrefix(path, "indexes/") }) {
		replaceBy(t, path, nil) // a file of its own: the reader has mapped the other one
	}
	same(t, s.opened(t, config), p, want)
	same(t, reader, p, want)
}

func replaceBy(tb testing.TB, path string, data []byte) {
	tb.Helper()
	if err := errors.Join(os.Remove(path), os.WriteFile(path, data, 0o600)); err != nil {
		tb.Fatal(err)
	}
}

// A storage that answers once with half of a blob, or with other bytes, does harm once.
func TestCache_keepsNothingThatWasReadWrong(t *testing.T) {
	t.Parallel()
	for _, prefix := range []blob.ID{"xn", "q", "p", "kopia."} {
		for what, change := range map[string]func([]byte) []byte{
			"half": func(data []byte) []byte { return data[:len(data)/2] },
			"flipped": func(data []byte) []byte {
				data = append([]byte(nil), data...)
				data[len(data)/2] ^= 1
				return data
			},
		} {
			t.Run(string(prefix)+"-"+what, func(t *testing.T) {
				t.Parallel()
				s := newSite(t)
				disk, _ := twoRegions(t, s.opened(t, s.connect(t, "writer", !cached)))
				p, err := s.opened(t, s.connect(t, "another", !cached)).Backup(t.Context(), Request{Source: testSource, Time: s.now(), Disks: []DiskSource{disk.source(true)}})
				if err != nil {
					t.Fatal(err)
				}
				config := s.connect(t, "machine", cached)
				var once atomic.Bool
				wrong := func(id blob.ID, data []byte) []byte {
					if !strings.HasPrefix(string(id), string(prefix)) || len(data) < 2 || once.Swap(true) {
						return data
					}
					return change(data)
				}
				s.reading.Store(&wrong)
				read := func() error {
					r, err := s.open(t.Context(), config)
					if err != nil {
						return err
					}
					image, err := r.Image(t.Context(), p.Disks[0])
					if err == nil {
						err = image.ReadAt(t.Context(), make([]byte, image.Disk.Bytes), 0)
					}
					return errors.Join(err, r.Close(context.WithoutCancel(t.Context())))
				}
				_ = read() // it may fail
				if !once.Load() {
					t.Fatal("nothing was read wrong")
				}
				same(t, s.opened(t, config), p, disk.data)
			})
		}
	}
}
