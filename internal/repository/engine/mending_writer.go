package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/compression"
	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/object"

	"github.com/varvebackup/varve/internal/repository/table"
)

// MendingWriter is kopia's writer, but it does not take for stored what is lost: kopia stores no content that its index names, even if
// the pack is gone. MendingWriter stores it again, under the same ID. So every restore point that has it is mended. It is safe for
// concurrent use.
type MendingWriter struct {
	repo.DirectRepositoryWriter

	objects *object.Manager
	losses  atomic.Pointer[Losses]
	// mu is held while losses changes. distrusted are the packs that Distrust was called for.
	mu         sync.Mutex
	distrusted []blob.ID
	// unchecked says that something counts as lost that did not before.
	unchecked atomic.Bool
	// turns let one goroutine at a time mend a content, by its hash.
	turns [64]sync.Mutex
	// mending is held for reading while a content is marked as deleted and stored again. A flush takes it, so that no index has the
	// mark alone: it would hide what another machine has stored since, because the later entry counts.
	mending sync.RWMutex
	// broken is why the mark may stay alone.
	broken atomic.Pointer[error]
}

// NewMendingWriter returns a writer that mends once SetLosses was called.
func NewMendingWriter(ctx context.Context, w repo.DirectRepositoryWriter) (*MendingWriter, error) {
	m := &MendingWriter{DirectRepositoryWriter: w}
	contents := newMendingContents(m, w.ContentManager().WriteContent)
	var err error
	if m.objects, err = object.NewObjectManager(ctx, contents, w.ObjectFormat(), nil); err != nil {
		return nil, err
	}
	return m, nil
}

// SetLosses says what is lost. What was written before is not looked at again: see Unchecked.
func (m *MendingWriter) SetLosses(l *Losses) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range m.distrusted {
		l = l.with(id)
	}
	if l.exceed(m.losses.Load()) {
		m.unchecked.Store(true)
	}
	m.losses.Store(l)
}

// Unchecked says whether something counts as lost that did not when Checked was called last.
func (m *MendingWriter) Unchecked() bool { return m.unchecked.Load() }

// Checked says that what was written so far is looked at from now on, with the losses that are known by now, or that nothing was.
func (m *MendingWriter) Checked() { m.unchecked.Store(false) }

// Losses returns what is lost.
func (m *MendingWriter) Losses() *Losses { return m.losses.Load() }

// Distrust counts a pack as damaged from now on, if the index names it as the place of a content.
func (m *MendingWriter) Distrust(ctx context.Context, id content.ID) {
	info, err := m.ContentReader().ContentInfo(ctx, id)
	if err != nil {
		return // A content that no index has is stored again in any case.
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if slices.Contains(m.distrusted, info.PackBlobID) {
		return
	}
	m.distrusted = append(m.distrusted, info.PackBlobID)
	m.losses.Store(m.losses.Load().with(info.PackBlobID))
	m.unchecked.Store(true)
}

// NewObjectWriter implements repo.RepositoryWriter.
func (m *MendingWriter) NewObjectWriter(ctx context.Context, o object.WriterOptions) object.Writer {
	return m.objects.NewWriter(ctx, o)
}

// ConcatenateObjects implements repo.RepositoryWriter.
func (m *MendingWriter) ConcatenateObjects(ctx context.Context, ids []object.ID, o repo.ConcatenateOptions) (object.ID, error) {
	return m.objects.Concatenate(ctx, ids, o.Compressor)
}

// Flush implements repo.RepositoryWriter.
func (m *MendingWriter) Flush(ctx context.Context) error {
	m.mending.Lock()
	defer m.mending.Unlock()
	if broken := m.broken.Load(); broken != nil {
		return *broken
	}
	return m.DirectRepositoryWriter.Flush(ctx)
}

// IsLost says whether a content is lost.
func (m *MendingWriter) IsLost(ctx context.Context, id content.ID) (bool, error) {
	if !m.Losses().Any() {
		return false, nil
	}
	info, err := m.ContentReader().ContentInfo(ctx, id)
	if err != nil {
		return false, err
	}
	return m.Losses().Has(info), nil
}

// mend stores a content again with store, if it is still lost.
func (m *MendingWriter) mend(ctx context.Context, id content.ID, store func() error) error {
	turn := &m.turns[int(id.Hash()[0])%len(m.turns)]
	turn.Lock()
	defer turn.Unlock()
	m.mending.RLock()
	defer m.mending.RUnlock()
	if lost, err := m.IsLost(ctx, id); err != nil || !lost {
		return err
	}
	contents := m.ContentManager()
	// kopia flushes by itself, too, whenever ten minutes have passed.
	contents.DisableIndexFlush(ctx)
	defer contents.EnableIndexFlush(ctx)
	// With the mark, kopia stores the content again. The new entry is the later one, so the mark never gets into an index.
	if err := contents.DeleteContent(ctx, id); err != nil {
		return fmt.Errorf("store content %s again: %w", id, err)
	}
	err := store()
	if err == nil {
		return nil
	}
	err = fmt.Errorf("store content %s again: %w", id, err)
	if info, look := contents.ContentInfo(ctx, id); look != nil || info.Deleted {
		m.broken.CompareAndSwap(nil, &err)
	}
	return err
}

// Intact returns a reader to which what is lost is corrupt.
func (m *MendingWriter) Intact() table.ContentReader { return intactReader{m.ContentReader(), m} }

type intactReader struct {
	table.ContentReader

	m *MendingWriter
}

// ContentInfo implements table.ContentReader.
func (r intactReader) ContentInfo(ctx context.Context, id content.ID) (content.Info, error) {
	info, err := r.ContentReader.ContentInfo(ctx, id)
	if err == nil && !info.Deleted && r.m.Losses().Has(info) {
		return info, errLost(info)
	}
	return info, err
}

// mendingContents is kopia's content manager as the writer of objects sees it. B is the type of a content's data, which belongs to an
// internal package of kopia's and cannot be named here.
type mendingContents[B any] struct {
	*content.WriteManager

	m     *MendingWriter
	write func(context.Context, B, content.IDPrefix, compression.HeaderID) (content.ID, error)
}

func newMendingContents[B any](m *MendingWriter, write func(context.Context, B, content.IDPrefix, compression.HeaderID) (content.ID, error)) *mendingContents[B] {
	return &mendingContents[B]{WriteManager: m.ContentManager(), m: m, write: write}
}

// WriteContent stores a content, unless the index has it and it is not lost.
func (c *mendingContents[B]) WriteContent(ctx context.Context, data B, prefix content.IDPrefix, comp compression.HeaderID) (content.ID, error) {
	id, err := c.write(ctx, data, prefix, comp)
	if err != nil {
		return id, err
	}
	lost, err := c.m.IsLost(ctx, id)
	if err != nil || !lost {
		return id, err
	}
	return id, c.m.mend(ctx, id, func() error {
		again, err := c.write(ctx, data, prefix, comp)
		if err == nil && again != id {
			err = errors.New("it has another ID")
		}
		return err
	})
}
