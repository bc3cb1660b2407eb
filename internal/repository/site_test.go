package repository

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/blob/filesystem"

	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/internal/repository/storage"
)

// siteType is kopia's name for the storage of a site.
const siteType = "varve-test"

// site is a repository in a directory of its own. Its time can be moved, and its storage reports what is done to it. Everything
// else, including the directory's layout, is as in any other repository.
type site struct {
	// dir is the site's directory. What a test puts beside the repository can be there, too.
	dir string
	// durable says that a loss of power is survived. Where everything else is small, that takes most of the time, and the death
	// of a process does not need it.
	durable bool
	// ahead is how much later it is at the site, in nanoseconds. faster is how much faster time has passed since began; 0: as
	// everywhere.
	ahead  atomic.Int64
	faster int64
	began  time.Time
	// stored is how many bytes were put into blobs.
	stored atomic.Int64
	// changed is called after each blob that was put or deleted; may be nil.
	changed func(op string, id blob.ID)
	// asked is called before a blob is read or looked for; may be nil.
	asked atomic.Pointer[func(id blob.ID)]
	// failing returns an error for a blob that is about to be read; if it is nil, nothing fails.
	failing atomic.Pointer[func(id blob.ID) error]
	// reading returns what is read instead of these bytes of a blob; if it is nil, they are.
	reading atomic.Pointer[func(id blob.ID, data []byte) []byte]
	// unlisted returns an error for a list with a prefix, or a blob that is about to be looked for; if it is nil, nothing fails.
	unlisted atomic.Pointer[func(name blob.ID) error]
	// silent says whether the storage does not answer a request for a blob, or a list of blobs with that prefix; nil: it always does.
	silent atomic.Pointer[func(id blob.ID) bool]
	// requests counts the requests to the storage.
	requests requestCounter
	// refusesPut returns an error for a blob that is about to be put; if it is nil, nothing fails. refusing is a switch for it.
	refusesPut func(id blob.ID) error
	refusing   atomic.Bool
	// refusesDelete returns an error for a blob that is about to be deleted; if it is nil, nothing fails.
	refusesDelete atomic.Pointer[func(id blob.ID) error]
	// answers returns what to report instead of success after a blob was put, and lists before blobs are listed; may be nil.
	answers func(id blob.ID) error
	lists   func() error
	// writing says whether this process dies in the middle of the blob that is about to be put; if it is nil, the process does
	// not die.
	writing func() bool
	// memory holds the blobs instead of the directory; nil: the directory does.
	memory *memoryBlobs
	// replaced says that another repository may take the place of this one, so that connections with a cache have to read the
	// format again.
	replaced bool
	// processes holds the last process of each machine.
	processes sync.Map
}

// sites holds the sites of this process by their directory.
var sites sync.Map

// siteOptions is what the connection's configuration holds.
type siteOptions struct {
	Path    string `json:"path"`
	Machine string `json:"machine"`
}

func init() {
	blob.AddSupportedStorage(siteType, siteOptions{}, func(ctx context.Context, o *siteOptions, create bool) (blob.Storage, error) {
		v, _ := sites.LoadOrStore(o.Path, &site{dir: o.Path})
		s, open := v.(*site), filesystem.New
		p := &process{}
		s.processes.Store(o.Machine, p)
		if s.memory != nil {
			return &siteStorage{Storage: storage.NewGuard(s.memory), site: s, process: p, machine: o.Machine}, nil
		}
		if s.durable {
			open = storage.NewDirectory
		}
		st, err := open(ctx, &filesystem.Options{Path: filepath.Join(o.Path, "blobs")}, create)
		if err != nil {
			return nil, err
		}
		return &siteStorage{Storage: storage.NewGuard(st), site: s, process: p, machine: o.Machine}, nil
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

// cached is an argument for connect.
const cached = true

// connect makes a connection as another machine has it, with a cache of its own or without, and returns its configuration.
func (s *site) connect(tb testing.TB, name string, cache bool) string {
	tb.Helper()
	config := filepath.Join(s.dir, name+".config")
	o := ConnectOptions{Host: name, User: "varve"}
	if cache {
		o.CacheDirectory, o.CacheBytes = filepath.Join(s.dir, name+".cache"), 64*mib
	}
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
	all["storage"] = blob.ConnectionInfo{Type: siteType, Config: siteOptions{Path: s.dir, Machine: name}}
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
	a, err := engine.LoadAccess(config, testPassword)
	if err != nil {
		return nil, err
	}
	c, err := engine.OpenConnection(ctx, a, s.now)
	if err != nil {
		return nil, err
	}
	r := &Repository{c}
	if hasCache := r.WithoutCache() == nil; hasCache {
		if err := s.trustFormat(config); err != nil {
			return nil, errors.Join(err, r.Close(ctx))
		}
	}
	return r, nil
}

// trustFormat makes the connection that was just opened trust its cache's copy of the format from now on. kopia reads the format
// again every quarter of an hour, which it tells by the time of the copy's file, and that is not the site's time. If the site's
// time was moved, each operation would read the format and write the copy, which is half of what long backups take. If the
// repository may be replaced, the copy is trusted for a quarter of an hour from now. Connections without a cache always have
// that.
func (s *site) trustFormat(config string) error {
	at := s.now()
	if !s.replaced {
		at = at.AddDate(20, 0, 0)
	}
	return storage.DateCachedFormat(strings.TrimSuffix(config, ".config")+".cache", at)
}

// opened returns a connection that is open until the test ends.
func (s *site) opened(tb testing.TB, config string) *Repository {
	tb.Helper()
	r, err := s.open(tb.Context(), config)
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

// answer returns when the storage answers. If it is silent, that is when the request is given up.
func (s *site) answer(ctx context.Context, id blob.ID) error {
	if silent := s.silent.Load(); silent == nil || !(*silent)(id) {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

// siteStorage is a directory as a process sees it.
type siteStorage struct {
	blob.Storage
	site    *site
	process *process
	machine string
}

func (s *siteStorage) ConnectionInfo() blob.ConnectionInfo {
	return blob.ConnectionInfo{Type: siteType, Config: &siteOptions{Path: s.site.dir, Machine: s.machine}}
}

func (s *siteStorage) PutBlob(ctx context.Context, id blob.ID, data blob.Bytes, o blob.PutOptions) error {
	if err := s.site.answer(ctx, id); err != nil {
		return err
	}
	s.site.requests.puts.Add(1)
	o.SetModTime = s.site.now()
	if s.site.refusesPut != nil {
		if err := s.site.refusesPut(id); err != nil {
			return err
		}
	}
	if s.site.writing != nil && s.site.writing() {
		data = cutBytes{data}
	}
	if err := s.process.change(func() error { return s.Storage.PutBlob(ctx, id, data, o) }); err != nil {
		return err
	}
	s.process.put(id, data.Length())
	s.site.stored.Add(int64(data.Length()))
	if s.site.changed != nil {
		s.site.changed("put", id)
	}
	if s.site.answers != nil {
		return s.site.answers(id)
	}
	return nil
}

func (s *siteStorage) GetBlob(ctx context.Context, id blob.ID, offset, length int64, out blob.OutputBuffer) error {
	if err := s.site.answer(ctx, id); err != nil {
		return err
	}
	if asked := s.site.asked.Load(); asked != nil {
		(*asked)(id)
	}
	if failing := s.site.failing.Load(); failing != nil {
		if err := (*failing)(id); err != nil {
			return err
		}
	}
	s.site.requests.gets.Add(1)
	reading := s.site.reading.Load()
	if reading == nil {
		return s.Storage.GetBlob(ctx, id, offset, length, out)
	}
	var data storage.Buffer
	if err := s.Storage.GetBlob(ctx, id, offset, length, &data); err != nil {
		return err
	}
	out.Reset()
	_, err := out.Write((*reading)(id, data.Bytes()))
	return err
}

func (s *siteStorage) GetMetadata(ctx context.Context, id blob.ID) (blob.Metadata, error) {
	if err := s.site.answer(ctx, id); err != nil {
		return blob.Metadata{}, err
	}
	if asked := s.site.asked.Load(); asked != nil {
		(*asked)(id)
	}
	s.site.requests.heads.Add(1)
	if unlisted := s.site.unlisted.Load(); unlisted != nil {
		if err := (*unlisted)(id); err != nil {
			return blob.Metadata{}, err
		}
	}
	return s.Storage.GetMetadata(ctx, id)
}

func (s *siteStorage) DeleteBlob(ctx context.Context, id blob.ID) error {
	if err := s.site.answer(ctx, id); err != nil {
		return err
	}
	if refuse := s.site.refusesDelete.Load(); refuse != nil {
		if err := (*refuse)(id); err != nil {
			return err
		}
	}
	err := s.process.change(func() error { return s.Storage.DeleteBlob(ctx, id) })
	if err != nil {
		return err
	}
	if s.site.changed != nil {
		s.site.changed("delete", id)
	}
	return nil
}

// cutBytes is a blob whose writer is killed when it has written half of it.
type cutBytes struct{ blob.Bytes }

func (c cutBytes) WriteTo(w io.Writer) (int64, error) {
	var whole bytes.Buffer
	if n, err := c.Bytes.WriteTo(&whole); err != nil {
		return n, err
	}
	n, err := w.Write(whole.Bytes()[:whole.Len()/2])
	if err == nil {
		die()
	}
	return int64(n), err
}
