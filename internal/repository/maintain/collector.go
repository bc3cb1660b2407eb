package maintain

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

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/table"
)

// flushEvery is how many contents are marked as deleted before the index that says so is stored.
const flushEvery = 100_000

// Collector marks the contents as deleted that no snapshot refers to, whether Varve's or another program's. It takes the mark
// away from contents that a snapshot refers to again. It follows the same rules as kopia's own collection, but reads each table
// once instead of once for every restore point that has it. It needs 10 bits for each content of the repository, and about 24
// bytes for each table.
type Collector struct {
	w      repo.DirectRepositoryWriter
	safety maintenance.SafetyParameters
	// before is the time from which ages are counted back.
	before time.Time
	// used has the contents that are in use, and a few others by mistake. Those are garbage that is kept until the next
	// collection, which has another filter.
	used *ContentFilter

	mu sync.Mutex
	// tables are the tables that were read or are being read. They are known exactly, because what is in a table that is skipped
	// is lost.
	tables map[contentHash]struct{}
	// recovered are the contents whose mark was taken away.
	recovered map[content.ID]struct{}
	stats     maintenancestats.SnapshotGCStats
}

// contentHash is a content's hash.
type contentHash [16]byte

func hashOf(id content.ID) (h contentHash) {
	copy(h[:], id.Hash())
	return h
}

// CollectGarbage runs one garbage collection.
func CollectGarbage(ctx context.Context, w repo.DirectRepositoryWriter, safety maintenance.SafetyParameters, before time.Time) error {
	return maintenance.ReportRun(ctx, w, maintenance.TaskSnapshotGarbageCollection, nil, func() (maintenancestats.Kind, error) {
		var all int64
		err := w.ContentReader().IterateContents(ctx, content.IterateOptions{}, func(content.Info) error { all++; return nil })
		if err != nil {
			return nil, fmt.Errorf("count the contents: %w", err)
		}
		c := NewCollector(w, safety, before, NewContentFilter(all))
		if err := c.Run(ctx); err != nil {
			return nil, err
		}
		return &c.stats, nil
	})
}

func NewCollector(w repo.DirectRepositoryWriter, safety maintenance.SafetyParameters, before time.Time, used *ContentFilter) *Collector {
	return &Collector{w: w, safety: safety, before: before, used: used, tables: map[contentHash]struct{}{}, recovered: map[content.ID]struct{}{}}
}

func (c *Collector) Run(ctx context.Context) error {
	if err := c.markUsed(ctx); err != nil {
		return fmt.Errorf("find what is in use: %w", err)
	}
	if err := c.deleteUnused(ctx); err != nil {
		return fmt.Errorf("mark what is not in use: %w", err)
	}
	return c.w.Flush(ctx)
}

// markUsed finds what snapshots refer to, including incomplete ones and those of other programs. It leaves nothing out: an error
// ends it.
func (c *Collector) markUsed(ctx context.Context) (err error) {
	ids, err := snapshot.ListSnapshotManifests(ctx, c.w, nil, nil)
	if err != nil {
		return err
	}
	walker, err := snapshotfs.NewTreeWalker(ctx, snapshotfs.TreeWalkerOptions{
		EntryCallback: func(ctx context.Context, _ fs.Entry, id object.ID, _ string) error { return c.markObject(ctx, id) },
	})
	if err != nil {
		return err
	}
	defer walker.Close(ctx)
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(table.DefaultWorkers)
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
func (c *Collector) markSnapshot(ctx context.Context, walker *snapshotfs.TreeWalker, id manifest.ID) error {
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

// markObject marks an object, and what its table refers to. It reads the tables within that table in parallel.
func (c *Collector) markObject(ctx context.Context, id object.ID) error {
	if _, ok := id.IndexObjectID(); !ok {
		return c.markContent(ctx, id)
	}
	entries, err := c.markTable(ctx, id)
	if err != nil {
		return err
	}
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(table.DefaultWorkers)
	for i, e := range entries {
		if inner.Err() != nil {
			break
		}
		if _, ok := e.Object.IndexObjectID(); !ok {
			if i == 0 || e.Object != entries[i-1].Object {
				if err := c.markContent(inner, e.Object); err != nil {
					return errors.Join(err, group.Wait())
				}
			}
			continue
		}
		if !c.isTableKnown(e.Object) {
			group.Go(func() error { return c.markObject(inner, e.Object) })
		}
	}
	return errors.Join(group.Wait(), ctx.Err())
}

// markTable marks the contents of a table, and returns its entries.
func (c *Collector) markTable(ctx context.Context, id object.ID) ([]object.IndirectObjectEntry, error) {
	inner, _ := id.IndexObjectID()
	if err := c.markObject(ctx, inner); err != nil {
		return nil, err
	}
	data, err := table.ReadShortObject(ctx, c.w.ContentReader(), inner)
	if err != nil {
		return nil, table.WrapReadError(fmt.Sprintf("read table %s", id), err)
	}
	entries, err := table.Decode(data)
	if err != nil {
		return nil, fmt.Errorf("%w: table %s: %w", errclass.Corrupt, id, err)
	}
	return entries, nil
}

// markContent marks an object that is one content. If the content is missing, nothing is collected, because an index may be lost.
func (c *Collector) markContent(ctx context.Context, id object.ID) error {
	cid, _, ok := id.ContentID()
	if !ok {
		return fmt.Errorf("%w: object %s", errclass.Corrupt, id)
	}
	info, err := c.w.ContentReader().ContentInfo(ctx, cid)
	if err != nil {
		return table.WrapReadError(fmt.Sprintf("look up content %s", cid), err)
	}
	c.used.addContent(cid)
	if info.Deleted {
		return c.undeleteContent(ctx, info)
	}
	return nil
}

// undeleteContent takes the deletion mark from a content that is in use. It does not ask the filter, so garbage stays marked.
func (c *Collector) undeleteContent(ctx context.Context, info content.Info) error {
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

// isTableKnown says whether a table was read before. If not, it notes that the table is read now.
func (c *Collector) isTableKnown(id object.ID) bool {
	inner, ok := id.IndexObjectID()
	if !ok {
		return false
	}
	cid, _, ok := inner.ContentID()
	if !ok || len(cid.Hash()) != len(contentHash{}) {
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

// deleteUnused goes through the contents and marks those as deleted that are old enough and not in use.
func (c *Collector) deleteUnused(ctx context.Context) error {
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
