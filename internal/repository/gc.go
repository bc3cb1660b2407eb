package repository

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kopia/kopia/fs"
	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/maintenance"
	"github.com/kopia/kopia/repo/maintenancestats"
	"github.com/kopia/kopia/repo/manifest"
	"github.com/kopia/kopia/repo/object"
	"github.com/kopia/kopia/snapshot"
	"github.com/kopia/kopia/snapshot/snapshotfs"
)

const (
	// maxMarks bounds the contents that are held to be in use at a time, at about 30 bytes each: those of 2 TiB in
	// blocks of 256 KiB. What is more is collected in several passes.
	maxMarks = 8 << 20
	// maxSeenTables bounds the tables that are known to have been looked at. Forgetting them costs time only.
	maxSeenTables = 1 << 20
	// flushEvery is how many contents are marked as deleted before an index is stored that says so.
	flushEvery = 100_000
)

// collector marks contents as deleted that no snapshot refers to, of Varve or of another program, and takes the mark away from those that
// one refers to again. It does what kopia's own collection does, by the same rules, but looks at each table once and not
// once for every restore point that has it, and its memory does not grow with a disk.
type collector struct {
	w      repo.DirectRepositoryWriter
	safety maintenance.SafetyParameters
	// before is the time that ages are counted back from.
	before time.Time
	// passes is how many parts the contents are collected in, by the beginning of their hashes; pass is the current one.
	passes, pass uint32

	mu     sync.Mutex
	used   map[hash]struct{}
	tables map[hash]struct{}
	stats  maintenancestats.SnapshotGCStats
}

// hash is the beginning of a content's hash. If two are the same, garbage is kept.
type hash [16]byte

func hashOf(id content.ID) (h hash) {
	copy(h[:], id.Hash())
	return h
}

// collectGarbage is one garbage collection. marks bounds how many contents are held in memory.
func collectGarbage(ctx context.Context, w repo.DirectRepositoryWriter, safety maintenance.SafetyParameters, before time.Time, marks int64) error {
	return maintenance.ReportRun(ctx, w, maintenance.TaskSnapshotGarbageCollection, nil, func() (maintenancestats.Kind, error) {
		var all int64
		err := w.ContentReader().IterateContents(ctx, content.IterateOptions{}, func(content.Info) error { all++; return nil })
		if err != nil {
			return nil, fmt.Errorf("count the contents: %w", err)
		}
		c := &collector{w: w, safety: safety, before: before, passes: uint32(1 + all/marks)} //nolint:gosec // contents of exabytes
		for c.pass = range c.passes {
			if err := c.run(ctx); err != nil {
				return nil, err
			}
		}
		return &c.stats, nil
	})
}

func (c *collector) run(ctx context.Context) error {
	c.used, c.tables = map[hash]struct{}{}, map[hash]struct{}{}
	if err := c.mark(ctx); err != nil {
		return fmt.Errorf("find what is in use: %w", err)
	}
	if err := c.sweep(ctx); err != nil {
		return fmt.Errorf("mark what is not in use: %w", err)
	}
	return c.w.Flush(ctx)
}

// mark finds what snapshots refer to, those of other programs and incomplete ones too. Nothing is left out: an error ends it.
func (c *collector) mark(ctx context.Context) (err error) {
	ids, err := snapshot.ListSnapshotManifests(ctx, c.w, nil, nil)
	if err != nil {
		return err
	}
	walker, err := snapshotfs.NewTreeWalker(ctx, snapshotfs.TreeWalkerOptions{
		EntryCallback: func(ctx context.Context, _ fs.Entry, id object.ID, _ string) error { return c.object(ctx, id) },
	})
	if err != nil {
		return err
	}
	defer walker.Close(ctx)
	for _, id := range ids {
		m, err := snapshot.LoadSnapshot(ctx, c.w, id)
		if errors.Is(err, snapshot.ErrSnapshotNotFound) {
			continue
		}
		if err != nil {
			return fmt.Errorf("snapshot %s: %w", id, err)
		}
		root, err := snapshotfs.SnapshotRoot(c.w, m)
		if err != nil {
			return fmt.Errorf("snapshot %s: %w", id, err)
		}
		if err := walker.Process(ctx, root, ""); err != nil {
			return fmt.Errorf("snapshot %s: %w", id, err)
		}
	}
	return nil
}

// object marks an object, and what its table refers to.
func (c *collector) object(ctx context.Context, id object.ID) error {
	if inner, ok := id.IndexObjectID(); ok {
		if err := c.object(ctx, inner); err != nil {
			return err
		}
		data, err := readBytes(ctx, c.w.ContentReader(), inner)
		if err != nil {
			return readError(fmt.Sprintf("read table %s", id), err)
		}
		entries, err := decodeTable(data)
		if err != nil {
			return fmt.Errorf("%w: table %s: %w", ErrCorrupt, id, err)
		}
		for _, e := range entries {
			if c.seen(e.Object) {
				continue
			}
			if err := c.object(ctx, e.Object); err != nil {
				return err
			}
		}
		return ctx.Err()
	}
	cid, _, ok := id.ContentID()
	if !ok {
		return fmt.Errorf("%w: object %s", ErrCorrupt, id)
	}
	return c.use(ctx, cid)
}

// seen says whether a table was looked at before, and takes it that it will be now.
func (c *collector) seen(id object.ID) bool {
	inner, ok := id.IndexObjectID()
	if !ok {
		return false
	}
	cid, _, ok := inner.ContentID()
	if !ok {
		return false
	}
	h := hashOf(cid)
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.tables[h]; ok {
		return true
	}
	if len(c.tables) >= maxSeenTables {
		clear(c.tables)
	}
	c.tables[h] = struct{}{}
	return false
}

// of says whether a content belongs to this pass.
func (c *collector) of(h hash) bool {
	return uint32(uint64(binary.BigEndian.Uint32(h[:]))*uint64(c.passes)>>32) == c.pass
}

// use marks a content. One that is not there is a reason to collect nothing: an index may be lost.
func (c *collector) use(ctx context.Context, id content.ID) error {
	h := hashOf(id)
	if !c.of(h) {
		return nil
	}
	c.mu.Lock()
	_, known := c.used[h]
	c.mu.Unlock()
	if known {
		return nil
	}
	if _, err := c.w.ContentReader().ContentInfo(ctx, id); err != nil {
		return readError(fmt.Sprintf("look up content %s", id), err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.used[h] = struct{}{}
	return nil
}

// sweep goes through the contents of this pass.
func (c *collector) sweep(ctx context.Context) error {
	return c.w.ContentReader().IterateContents(ctx, content.IterateOptions{IncludeDeleted: true}, func(info content.Info) error {
		h := hashOf(info.ContentID)
		if !c.of(h) {
			return nil
		}
		bytes := int64(info.PackedLength)
		if info.ContentID.Prefix() == manifest.ContentPrefix {
			c.stats.InUseSystemContentCount++
			c.stats.InUseSystemContentSize += bytes
			return nil
		}
		_, used := c.used[h]
		switch {
		case used && info.Deleted:
			c.stats.RecoveredContentCount++
			c.stats.RecoveredContentSize += bytes
			return c.w.ContentManager().UndeleteContent(ctx, info.ContentID)
		case used:
			c.stats.InUseContentCount++
			c.stats.InUseContentSize += bytes
		case info.Deleted:
		case c.before.Sub(info.Timestamp()) < c.safety.MinContentAgeSubjectToGC:
			c.stats.UnreferencedRecentContentCount++
			c.stats.UnreferencedRecentContentSize += bytes
		default:
			c.stats.UnreferencedContentCount++
			c.stats.UnreferencedContentSize += bytes
			c.stats.DeletedContentCount++
			c.stats.DeletedContentSize += bytes
			if err := c.w.ContentManager().DeleteContent(ctx, info.ContentID); err != nil {
				return err
			}
			if c.stats.DeletedContentCount%flushEvery == 0 {
				return c.w.Flush(ctx)
			}
		}
		return nil
	})
}
