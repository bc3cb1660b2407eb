package repository

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/blob/filesystem"
)

// siteType is kopia's name for the storage of a site.
const siteType = "varve-test"

// site is a repository in a directory of its own whose time can be moved, and whose storage tells what is done to it. Everything of the
// repository itself, the directory's layout included, is that of any other.
type site struct {
	// dir is the site's: what a test puts beside the repository can be there too.
	dir string
	// ahead is how much later it is there, in nanoseconds, and faster how much faster time passes since began; 0: as everywhere.
	ahead  atomic.Int64
	faster int64
	began  time.Time
	// stored is how many bytes were put into blobs.
	stored atomic.Int64
	// changed is called after each blob that was put or deleted; nil: nothing is.
	changed func(op string, id blob.ID)
}

// sites are those of this process by their directory.
var sites sync.Map

// siteOptions are what the connection's configuration has.
type siteOptions struct {
	Path string `json:"path"`
}

func init() {
	blob.AddSupportedStorage(siteType, siteOptions{}, func(ctx context.Context, o *siteOptions, create bool) (blob.Storage, error) {
		st, err := filesystem.New(ctx, &filesystem.Options{Path: filepath.Join(o.Path, "blobs")}, create)
		if err != nil {
			return nil, err
		}
		s, _ := sites.LoadOrStore(o.Path, &site{dir: o.Path})
		return &siteStorage{Storage: st, site: s.(*site)}, nil
	})
}

// newSite makes a repository.
func newSite(tb testing.TB) *site {
	tb.Helper()
	s := &site{dir: tb.TempDir()}
	if err := Create(tb.Context(), s.location(), testPassword, CreateOptions{}); err != nil {
		tb.Fatal(err)
	}
	sites.Store(s.dir, s)
	tb.Cleanup(func() { sites.Delete(s.dir) })
	return s
}

func (s *site) location() Location { return Location{Directory: filepath.Join(s.dir, "blobs")} }

func (s *site) now() time.Time {
	now := time.Now()
	return now.Add(time.Duration(s.ahead.Load() + s.faster*int64(now.Sub(s.began))))
}

func (s *site) move(d time.Duration) { s.ahead.Add(int64(d)) }

// connect makes a connection with a cache of its own, as another machine has, and returns its configuration.
func (s *site) connect(tb testing.TB, name string) string {
	tb.Helper()
	config := filepath.Join(s.dir, name+".config")
	o := ConnectOptions{CacheDirectory: filepath.Join(s.dir, name+".cache"), CacheBytes: 64 * mib, Host: name, User: "varve"}
	if err := Connect(tb.Context(), config, s.location(), testPassword, o); err != nil {
		tb.Fatal(err)
	}
	var all map[string]any
	data, err := os.ReadFile(config)
	if err == nil {
		err = json.Unmarshal(data, &all)
	}
	if err != nil {
		tb.Fatal(err)
	}
	all["storage"] = blob.ConnectionInfo{Type: siteType, Config: siteOptions{Path: s.dir}}
	if data, err = json.Marshal(all); err == nil {
		err = os.WriteFile(config, data, 0o600)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return config
}

// open opens a connection in the site's time.
func (s *site) open(ctx context.Context, config string) (*Repository, error) {
	r := &Repository{configFile: config, password: testPassword}
	rep, err := repo.Open(ctx, config, testPassword, &repo.Options{TimeNowFunc: s.now, DoNotWaitForUpgrade: true, OnFatalError: r.fail})
	if err != nil {
		return nil, err
	}
	r.rep = rep.(repo.DirectRepository)
	return r, nil
}

// siteStorage is a directory.
type siteStorage struct {
	blob.Storage
	site *site
}

func (s *siteStorage) ConnectionInfo() blob.ConnectionInfo {
	return blob.ConnectionInfo{Type: siteType, Config: &siteOptions{Path: s.site.dir}}
}

func (s *siteStorage) PutBlob(ctx context.Context, id blob.ID, data blob.Bytes, o blob.PutOptions) error {
	o.SetModTime = s.site.now()
	if err := s.Storage.PutBlob(ctx, id, data, o); err != nil {
		return err
	}
	s.site.stored.Add(int64(data.Length()))
	if s.site.changed != nil {
		s.site.changed("put", id)
	}
	return nil
}

func (s *siteStorage) DeleteBlob(ctx context.Context, id blob.ID) error {
	if err := s.Storage.DeleteBlob(ctx, id); err != nil {
		return err
	}
	if s.site.changed != nil {
		s.site.changed("delete", id)
	}
	return nil
}
