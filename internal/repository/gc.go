package repository

import (
	"context"
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
	"golang.org/x/sync/errgroup"
)

// flushEvery is how many contents are marked as deleted before the index that says so is stored.
const flushEvery = 100_000

// collector marks the contents as deleted that no snapshot refers to, whether Varve's or another program's. It takes the mark
// away from contents that a snapshot refers to again. It follows the same rules as kopia's own collection, but reads each table
// once instead of once for every restore point that has it. It needs 10 bits for each content of the repository, and about 24
// bytes for each table.
type collector struct {
	w      repo.DirectRepositoryWriter
	safety maintenance.SafetyParameters
	// before is the time from which ages are counted back.
	before time.Time
	// used has the contents that are in use, and a few others by mistake. Those are garbage that is kept until the next
	// collection, which has another filter.
	used *contentFilter

	mu sync.Mutex
	// tables are the tables that were read or are being read. They are known exactly, because what is in a table that is skipped
	// is lost.
	tables map[hash]struct{}
	// recovered are the contents whose mark was taken away.
	recovered map[content.ID]struct{}
	stats     maintenancestats.SnapshotGCStats
}

// hash is a content's hash.
type hash [16]byte

func hashOf(id content.ID) (h hash) {
	copy(h[:], id.Hash())
	return h
}

// collectGarbage runs one garbage collection.
func collectGarbage(ctx context.Context, w repo.DirectRepositoryWriter, safety maintenance.SafetyParameters, before time.Time) error {
	return maintenance.ReportRun(ctx, w, maintenance.TaskSnapshotGarbageCollection, nil, func() (maintenancestats.Kind, error) {
		var all int64
		err := w.ContentReader().IterateContents(ctx, content.IterateOptions{}, func(content.Info) error { all++; return nil })
		if err != nil {
			return nil, fmt.Errorf("count the contents: %w", err)
		}
		c := newCollector(w, safety, before, newContentFilter(all))
		if err := c.run(ctx); err != nil {
			return nil, err
		}
		return &c.stats, nil
	})
}

func newCollector(w repo.DirectRepositoryWriter, safety maintenance.SafetyParameters, before time.Time, used *contentFilter) *collector {
	return &collector{w: w, safety: safety, before: before, used: used, tables: map[hash]struct{}{}, recovered: map[content.ID]struct{}{}}
}

func (c *collector) run(ctx context.Context) error {
	if err := c.mark(ctx); err != nil {
		return fmt.Errorf("find what is in use: %w", err)
	}
	if err := c.sweep(ctx); err != nil {
		return fmt.Errorf("mark what is not in use: %w", err)
	}
	return c.w.Flush(ctx)
}

// mark finds what snapshots refer to, including incomplete ones and those of other programs. It leaves nothing out: an error ends
// it.
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
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(DefaultWorkers)
	for _, id := range ids {
		if inner.Err() != nil {
			break
		}
		group.Go(func() error {
			if err := c.markSnapshot(inner, walker, id); err != nil {
				return fmt.Errorf("snapshot %s: %w", id, err)
			}
			return nil
		})
	}
	return errors.Join(group.Wait(), ctx.Err())
}

// markSnapshot finds what a snapshot refers to. A snapshot that has been deleted since refers to nothing.
func (c *collector) markSnapshot(ctx context.Context, walker *snapshotfs.TreeWalker, id manifest.ID) error {
	m, err := snapshot.LoadSnapshot(ctx, c.w, id)
	if errors.Is(err, snapshot.ErrSnapshotNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	root, err := snapshotfs.SnapshotRoot(c.w, m)
	if err != nil {
		return err
	}
	return walker.Process(ctx, root, "")
}

// object marks an object, and what its table refers to. It reads the tables within that table in parallel.
func (c *collector) object(ctx context.Context, id object.ID) error {
	if _, ok := id.IndexObjectID(); !ok {
		return c.direct(ctx, id)
	}
	entries, err := c.table(ctx, id)
	if err != nil {
		return err
	}
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(DefaultWorkers)
	for i, e := range entries {
		if inner.Err() != nil {
			break
		}
		if _, ok := e.Object.IndexObjectID(); !ok {
			if i == 0 || e.Object != entries[i-1].Object {
				if err := c.direct(inner, e.Object); err != nil {
					return errors.Join(err, group.Wait())
				}
			}
			continue
		}
		if !c.seen(e.Object) {
			group.Go(func() error { return c.object(inner, e.Object) })
		}
	}
	return errors.Join(group.Wait(), ctx.Err())
}

// table marks the contents of a table, and returns its entries.
func (c *collector) table(ctx context.Context, id object.ID) ([]object.IndirectObjectEntry, error) {
	inner, _ := id.IndexObjectID()
	if err := c.object(ctx, inner); err != nil {
		return nil, err
	}
	data, err := readBytes(ctx, c.w.ContentReader(), inner)
	if err != nil {
		return nil, readError(fmt.Sprintf("read table %s", id), err)
	}
	entries, err := decodeTable(data)
	if err != nil {
		return nil, fmt.Errorf("%w: table %s: %w", ErrCorrupt, id, err)
	}
	return entries, nil
}

// direct marks an object that is one content. If the content is missing, nothing is collected, because an index may be lost.
func (c *collector) direct(ctx context.Context, id object.ID) error {
	cid, _, ok := id.ContentID()
	if !ok {
		return fmt.Errorf("%w: object %s", ErrCorrupt, id)
	}
	info, err := c.w.ContentReader().ContentInfo(ctx, cid)
	if err != nil {
		return readError(fmt.Sprintf("look up content %s", cid), err)
	}
	c.used.add(cid)
	if info.Deleted {
		return c.undelete(ctx, info)
	}
	return nil
}

// undelete takes the deletion mark from a content that is in use. It does not ask the filter, so garbage stays marked.
func (c *collector) undelete(ctx context.Context, info content.Info) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, done := c.recovered[info.ContentID]; done {
		return nil
	}
	if err := c.w.ContentManager().UndeleteContent(ctx, info.ContentID); err != nil {
		return fmt.Errorf("take the mark of deletion from content %s: %w", info.ContentID, err)
	}
	c.recovered[info.ContentID] = struct{}{}
	c.stats.RecoveredContentCount++
	c.stats.RecoveredContentSize += int64(info.PackedLength)
	return nil
}

// seen says whether a table was read before. If not, it notes that the table is read now.
func (c *collector) seen(id object.ID) bool {
	inner, ok := id.IndexObjectID()
	if !ok {
		return false
	}
	cid, _, ok := inner.ContentID()
	if !ok || len(cid.Hash()) != len(hash{}) {
		return false
	}
	h := hashOf(cid)
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.tables[h]; ok {
		return true
	}
	c.tables[h] = struct{}{}
	return false
}

// sweep goes through the contents and marks those as deleted that are old enough and not in use.
func (c *collector) sweep(ctx context.Context) error {
	return c.w.ContentReader().IterateContents(ctx, content.IterateOptions{IncludeDeleted: true}, func(info content.Info) error {
		bytes := int64(info.PackedLength)
		if info.ContentID.Prefix() == manifest.ContentPrefix {
			c.stats.InUseSystemContentCount++
			c.stats.InUseSystemContentSize += bytes
			return nil
		}
		_, recovered := c.recovered[info.ContentID]
		switch {
		case info.Deleted, recovered:
		case c.used.mayHave(info.ContentID):
			c.stats.InUseContentCount++
			c.stats.InUseContentSize += bytes
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
