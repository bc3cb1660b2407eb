package repository

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/blob/filesystem"

	"github.com/varvebackup/varve/internal/repository/storage"
	"github.com/varvebackup/varve/internal/repository/storage/storagetest"
)

// memoryBlobs holds the blobs of a site without a directory. Months of backups list blobs tens of thousands of times, and kopia
// asks a directory for the size and time of each blob.
type memoryBlobs struct {
	blob.DefaultProviderImplementation

	mu    sync.Mutex
	blobs map[blob.ID]memoryBlob
}

type memoryBlob struct {
	data []byte
	at   time.Time
}

// inMemory moves the blobs of a site to memory. Nobody may have opened the site yet.
func (s *site) inMemory(tb testing.TB) {
	tb.Helper()
	ctx := tb.Context()
	st, err := filesystem.New(ctx, &filesystem.Options{Path: s.location().Directory}, false)
	if err != nil {
		tb.Fatal(err)
	}
	m := &memoryBlobs{blobs: map[blob.ID]memoryBlob{}}
	err = st.ListBlobs(ctx, "", func(b blob.Metadata) error {
		data, err := storage.ReadBlob(ctx, st, b.BlobID)
		m.blobs[b.BlobID] = memoryBlob{data: data, at: b.Timestamp}
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
	s.memory = m
	tb.Cleanup(func() { // What the test's killed processes still have open must not keep them alive.
		m.mu.Lock()
		defer m.mu.Unlock()
		clear(m.blobs)
	})
}

func (m *memoryBlobs) ConnectionInfo() blob.ConnectionInfo { return blob.ConnectionInfo{} }
func (m *memoryBlobs) DisplayName() string                 { return "memory" }

func (m *memoryBlobs) get(id blob.ID) (memoryBlob, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, ok := m.blobs[id]
	if !ok {
		return b, blob.ErrBlobNotFound
	}
	return b, nil
}

func (m *memoryBlobs) GetBlob(ctx context.Context, id blob.ID, offset, length int64, out blob.OutputBuffer) error {
	out.Reset()
	b, err := m.get(id)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return err
	case length < 0:
		_, err = out.Write(b.data)
	case offset < 0 || offset+length > int64(len(b.data)):
		err = blob.ErrInvalidRange
	default:
		_, err = out.Write(b.data[offset : offset+length])
	}
	return err
}

func (m *memoryBlobs) GetMetadata(ctx context.Context, id blob.ID) (blob.Metadata, error) {
	b, err := m.get(id)
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return blob.Metadata{BlobID: id, Length: int64(len(b.data)), Timestamp: b.at}, err
}

func (m *memoryBlobs) ListBlobs(ctx context.Context, prefix blob.ID, call func(blob.Metadata) error) error {
	m.mu.Lock()
	var all []blob.Metadata
	for id, b := range m.blobs {
		if strings.HasPrefix(string(id), string(prefix)) {
			all = append(all, blob.Metadata{BlobID: id, Length: int64(len(b.data)), Timestamp: b.at})
		}
	}
	m.mu.Unlock()
	slices.SortFunc(all, func(a, b blob.Metadata) int { return strings.Compare(string(a.BlobID), string(b.BlobID)) })
	for _, b := range all {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := call(b); err != nil {
			return err
		}
	}
	return nil
}

func (m *memoryBlobs) PutBlob(ctx context.Context, id blob.ID, data blob.Bytes, o blob.PutOptions) error {
	var b bytes.Buffer
	b.Grow(data.Length())
	if _, err := data.WriteTo(&b); err != nil || ctx.Err() != nil {
		return ctx.Err()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.blobs[id] = memoryBlob{data: b.Bytes(), at: o.SetModTime}
	if o.GetModTime != nil {
		*o.GetModTime = o.SetModTime
	}
	return nil
}

func (m *memoryBlobs) DeleteBlob(ctx context.Context, id blob.ID) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.blobs, id)
	return nil
}

// now returns a copy of all blobs.
func (m *memoryBlobs) now() map[blob.ID]memoryBlob {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.blobs)
}

// become replaces all blobs by these.
func (m *memoryBlobs) become(blobs map[blob.ID]memoryBlob) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.blobs = maps.Clone(blobs)
}

// newMemorySite makes a repository in memory.
func newMemorySite(tb testing.TB) *site {
	tb.Helper()
	s := newSite(tb)
	s.inMemory(tb)
	return s
}

// The fake is a storage as the others are, so that it hides no defect.
func TestMemoryBlobs_keepTheContract(t *testing.T) {
	t.Parallel()
	storagetest.Run(t, func(*testing.T) blob.Storage {
		return &siteStorage{Storage: &memoryBlobs{blobs: map[blob.ID]memoryBlob{}}, site: &site{}, process: &process{}}
	})
}
