package mover

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/blob/filesystem"

	"github.com/varvebackup/varve/internal/repository"
)

// stallingType is kopia's name for a directory that can stop answering.
const stallingType = "varve-mover-test"

// stallingOptions is what a connection's configuration holds.
type stallingOptions struct {
	Path string `json:"path"`
}

// stalls holds the stall of each directory.
var stalls sync.Map

// stall makes what calls wait hang, and ignore its context, as a file server that is gone does.
type stall struct {
	on atomic.Bool
	// reached is closed when the first call hangs, released lets all of them go.
	reached, released chan struct{}
	once              sync.Once
}

func newStall() *stall { return &stall{reached: make(chan struct{}), released: make(chan struct{})} }

func (s *stall) wait() {
	if s.on.Load() {
		s.once.Do(func() { close(s.reached) })
		<-s.released
	}
}

func init() {
	blob.AddSupportedStorage(stallingType, stallingOptions{}, func(ctx context.Context, o *stallingOptions, create bool) (blob.Storage, error) {
		st, err := filesystem.New(ctx, &filesystem.Options{Path: o.Path}, create)
		s, _ := stalls.Load(o.Path)
		return &stallingStorage{Storage: st, path: o.Path, stall: s.(*stall)}, err
	})
}

// stallingStorage hangs when a blob is put or read.
type stallingStorage struct {
	blob.Storage

	path  string
	stall *stall
}

func (s *stallingStorage) ConnectionInfo() blob.ConnectionInfo {
	return blob.ConnectionInfo{Type: stallingType, Config: &stallingOptions{Path: s.path}}
}

func (s *stallingStorage) PutBlob(ctx context.Context, id blob.ID, data blob.Bytes, o blob.PutOptions) error {
	s.stall.wait()
	return s.Storage.PutBlob(ctx, id, data, o)
}

func (s *stallingStorage) GetBlob(ctx context.Context, id blob.ID, offset, length int64, out blob.OutputBuffer) error {
	s.stall.wait()
	return s.Storage.GetBlob(ctx, id, offset, length, out)
}

// newStallingRepository makes a repository whose storage hangs as soon as the stall is on.
func newStallingRepository(tb testing.TB) (*repository.Repository, *stall) {
	tb.Helper()
	dir := tb.TempDir()
	config, path, s := connectRepository(tb, dir), filepath.Join(dir, "blobs"), newStall()
	stalls.Store(path, s)
	tb.Cleanup(func() { stalls.Delete(path) })
	var all map[string]any
	data, err := os.ReadFile(config)
	if err == nil {
		err = json.Unmarshal(data, &all)
	}
	if err == nil {
		all["storage"] = blob.ConnectionInfo{Type: stallingType, Config: stallingOptions{Path: path}}
		data, err = json.Marshal(all)
	}
	if err == nil {
		err = os.WriteFile(config, data, 0o600)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return openRepository(tb, config), s
}
