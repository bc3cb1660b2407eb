package storage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/content"
	"golang.org/x/sys/unix"
)

// View is a storage without the blobs that hidden selects, and with other content for those in replaced. Whoever changes hidden
// makes the connection refresh itself.
type View struct {
	blob.Storage

	owner atomic.Bool

	mu       sync.Mutex
	hidden   func(blob.ID) bool
	replaced map[blob.ID][]byte
	// listed holds the lengths of the index blobs that were listed.
	listed map[blob.ID]int64
}

// NewView returns a view of a storage that hides the blobs that hidden selects, and shows those in replaced with that content.
// Both may be nil.
func NewView(st blob.Storage, hidden func(blob.ID) bool, replaced map[blob.ID][]byte) *View {
	return &View{Storage: st, hidden: hidden, replaced: replaced}
}

// Hide changes which blobs are hidden; nil shows all of them.
func (v *View) Hide(hidden func(blob.ID) bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.hidden = hidden
}

// Replace shows these bytes as a blob; nil shows what the storage has.
func (v *View) Replace(id blob.ID, data []byte) {
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

func (v *View) isHidden(id blob.ID) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.hidden != nil && v.hidden(id)
}

func (v *View) ListBlobs(ctx context.Context, prefix blob.ID, call func(blob.Metadata) error) error {
	return v.Storage.ListBlobs(ctx, prefix, func(m blob.Metadata) error {
		if v.isHidden(m.BlobID) {
			return nil
		}
		if IsIndex(m.BlobID) {
			v.noteLength(m)
		}
		return call(m)
	})
}

func (v *View) GetBlob(ctx context.Context, id blob.ID, offset, length int64, out blob.OutputBuffer) error {
	if v.isHidden(id) {
		return blob.ErrBlobNotFound
	}
	v.mu.Lock()
	data, ok := v.replaced[id]
	v.mu.Unlock()
	if !ok {
		return v.getStored(ctx, id, offset, length, out)
	}
	out.Reset()
	if length >= 0 {
		data = data[min(offset, int64(len(data))):min(offset+length, int64(len(data)))]
	}
	_, err := out.Write(data)
	return err
}

// noteLength notes how long an index blob is.
func (v *View) noteLength(m blob.Metadata) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.listed == nil {
		v.listed = map[blob.ID]int64{}
	}
	v.listed[m.BlobID] = m.Length
}

// getStored reads a blob from the storage. kopia keeps in its cache what it gets of an index, and reads it from there from then on. So an
// index blob that is shorter or longer than it was listed is read once more.
func (v *View) getStored(ctx context.Context, id blob.ID, offset, length int64, out blob.OutputBuffer) error {
	v.mu.Lock()
	want, listed := v.listed[id]
	v.mu.Unlock()
	err := v.Storage.GetBlob(ctx, id, offset, length, out)
	if !listed || offset != 0 || length >= 0 || err != nil || int64(out.Length()) == want {
		return err
	}
	out.Reset()
	return v.Storage.GetBlob(ctx, id, offset, length, out)
}

func (v *View) GetMetadata(ctx context.Context, id blob.ID) (blob.Metadata, error) {
	if v.isHidden(id) {
		return blob.Metadata{}, blob.ErrBlobNotFound
	}
	return v.Storage.GetMetadata(ctx, id)
}

// Own makes Close close the storage. kopia then closes it once a connection and all its writers are closed.
func (v *View) Own() { v.owner.Store(true) }

// Close leaves the storage open unless the view owns it, because a view can be connected to again.
func (v *View) Close(ctx context.Context) error {
	if !v.owner.Load() {
		return nil
	}
	return v.Storage.Close(ctx)
}

// Configure returns the name of a configuration file for a connection to the view. The file is in memory, and holds nothing of the
// storage. Without caching, everything is read from the storage. The view can be connected to until remove is called; connections
// stay.
func (v *View) Configure(as repo.ClientOptions, caching *content.CachingOptions) (file string, remove func() error, err error) {
	key := strconv.FormatInt(lastViewKey.Add(1), 10)
	config, err := json.Marshal(repo.LocalConfig{
		ClientOptions: as, Caching: caching, Storage: &blob.ConnectionInfo{Type: viewType, Config: viewConfig{Key: key}},
	})
	if err != nil {
		return "", nil, fmt.Errorf("configuration of a connection: %w", err)
	}
	fd, err := unix.MemfdCreate("varve-connection", unix.MFD_CLOEXEC)
	if err != nil {
		return "", nil, fmt.Errorf("configuration of a connection: %w", os.NewSyscallError("memfd_create", err))
	}
	f := os.NewFile(uintptr(fd), "varve-connection")
	if _, err := f.Write(config); err != nil {
		return "", nil, errors.Join(fmt.Errorf("configuration of a connection: %w", err), f.Close())
	}
	views.Store(key, v)
	remove = func() error {
		views.Delete(key)
		return f.Close()
	}
	return fmt.Sprintf("/proc/self/fd/%d", fd), remove, nil
}
