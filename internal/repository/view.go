package repository

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"
)

// viewType is the type of storage in the configuration of a connection to a view.
const viewType = "varve-view"

// views holds the open views by their keys.
var views sync.Map

type viewConfig struct {
	Key string `json:"key"`
}

func init() {
	blob.AddSupportedStorage(viewType, viewConfig{}, func(_ context.Context, c *viewConfig, _ bool) (blob.Storage, error) {
		v, ok := views.Load(c.Key)
		if !ok {
			return nil, fmt.Errorf("%w: there is no view %q", ErrInvalid, c.Key)
		}
		return v.(blob.Storage), nil
	})
}

// view is a storage without the blobs that hidden selects, and with other content for those in replaced. Whoever changes hidden
// makes the connection refresh itself.
type view struct {
	blob.Storage

	mu       sync.Mutex
	hidden   func(blob.ID) bool
	replaced map[blob.ID][]byte
}

func (v *view) hide(hidden func(blob.ID) bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.hidden = hidden
}

// replace shows these bytes as a blob; nil shows what the storage has.
func (v *view) replace(id blob.ID, data []byte) {
	v.mu.Lock()
	defer v.mu.Unlock()
	next := maps.Clone(v.replaced)
	switch {
	case data == nil:
		delete(next, id)
	case next == nil:
		next = map[blob.ID][]byte{id: data}
	default:
		next[id] = data
	}
	v.replaced = next
}

func (v *view) hides(id blob.ID) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.hidden != nil && v.hidden(id)
}

func (v *view) ListBlobs(ctx context.Context, prefix blob.ID, call func(blob.Metadata) error) error {
	return v.Storage.ListBlobs(ctx, prefix, func(m blob.Metadata) error {
		if v.hides(m.BlobID) {
			return nil
		}
		return call(m)
	})
}

func (v *view) GetBlob(ctx context.Context, id blob.ID, offset, length int64, out blob.OutputBuffer) error {
	if v.hides(id) {
		return blob.ErrBlobNotFound
	}
	v.mu.Lock()
	data, ok := v.replaced[id]
	v.mu.Unlock()
	if !ok {
		return v.Storage.GetBlob(ctx, id, offset, length, out)
	}
	out.Reset()
	if length >= 0 {
		data = data[min(offset, int64(len(data))):min(offset+length, int64(len(data)))]
	}
	_, err := out.Write(data)
	return err
}

func (v *view) GetMetadata(ctx context.Context, id blob.ID) (blob.Metadata, error) {
	if v.hides(id) {
		return blob.Metadata{}, blob.ErrBlobNotFound
	}
	return v.Storage.GetMetadata(ctx, id)
}

// Close leaves the storage open, because a view can be connected to again.
func (v *view) Close(context.Context) error { return nil }

// connect opens the repository of configFile as the view shows it, without any cache, so that everything is read from the
// storage.
func (v *view) connect(ctx context.Context, as repo.ClientOptions, configFile, password string, now func() time.Time) (_ *Repository, err error) {
	dir, err := os.MkdirTemp("", "varve-view-")
	if err != nil {
		return nil, fmt.Errorf("configuration without a cache: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	views.Store(dir, v)
	defer views.Delete(dir)
	config, err := json.Marshal(repo.LocalConfig{ClientOptions: as, Storage: &blob.ConnectionInfo{Type: viewType, Config: viewConfig{Key: dir}}})
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "repository.config")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		return nil, err
	}
	return openFile(ctx, file, configFile, password, now)
}
