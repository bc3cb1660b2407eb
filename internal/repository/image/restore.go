package image

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/object"
	"golang.org/x/sync/errgroup"

	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/internal/repository/table"
)

// Target takes a disk that is being restored. Its methods are called from several goroutines.
type Target interface {
	// WriteAt writes all of p. It must not keep p, which is reused.
	WriteAt(ctx context.Context, p []byte, offset int64) error
	// Zero makes e read as zeroes. A target that already does may do nothing.
	Zero(ctx context.Context, e extent.Extent) error
	// Sync makes durable what was written.
	Sync(ctx context.Context) error
}

// RestoreOptions are for Restore.
type RestoreOptions struct {
	// Workers fetch, check and write in parallel; 0: table.DefaultWorkers.
	Workers int
	// Done says which regions need not be written again; may be nil. Finished is called with each region that was written, from
	// several goroutines; may be nil.
	Done     func(region int) bool
	Finished func(region int, e extent.Extent)
	// Wrote is called with the length of each piece of data, holes excluded, once the target has it, from several goroutines; may
	// be nil.
	Wrote func(bytes int64)
}

// Restore writes the whole disk to target and syncs it. It authenticates each block before writing it. A block that cannot be
// read ends the restore with errclass.Corrupt, and nothing wrong is written in its place. The repository stays open until the
// restore ends.
func (m *Image) Restore(ctx context.Context, target Target, o RestoreOptions) error {
	release, err := m.reader.Hold()
	if err != nil {
		return fmt.Errorf("restore disk %s: %w", m.Disk.Name, err)
	}
	defer release()
	if o.Workers <= 0 {
		o.Workers = table.DefaultWorkers
	}
	group, inner := errgroup.WithContext(ctx)
	var next atomic.Int64
	for range min(o.Workers, len(m.List)) {
		group.Go(func() error {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(m.List) || inner.Err() != nil {
					return inner.Err()
				}
				if o.Done != nil && o.Done(i) {
					continue
				}
				if err := m.restoreRegion(inner, i, target, o.Wrote); err != nil {
					return err
				}
				if o.Finished != nil {
					o.Finished(i, m.Geometry.Region(i))
				}
			}
		})
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("restore disk %s: %w", m.Disk.Name, err)
	}
	if err := target.Sync(ctx); err != nil {
		return fmt.Errorf("restore disk %s: sync: %w", m.Disk.Name, err)
	}
	return nil
}

// restoreRegion writes region i: first its holes, then its data, in the order in which it lies in the packs.
func (m *Image) restoreRegion(ctx context.Context, i int, target Target, wrote func(int64)) error {
	entries := m.cachedRegion(i)
	if entries == nil {
		var err error
		if entries, err = table.ReadRegion(ctx, m.reader, m.Geometry, i, m.List[i].Object); err != nil {
			return err
		}
	}
	if err := m.restoreHoles(ctx, i, entries, target); err != nil {
		return err
	}
	var data []locatedBlock
	for j, entry := range entries {
		if m.IsHole(entry) {
			continue
		}
		id, err := table.BlockContent(entry.Object)
		if err != nil {
			return fmt.Errorf("at %d: %w", m.Geometry.Block(i, j).Offset, err)
		}
		data = append(data, locatedBlock{block: j, info: m.reader.Locate(ctx, id)})
	}
	slices.SortFunc(data, func(a, b locatedBlock) int { return engine.CompareLocations(a.info, b.info) })
	places := make([]content.Info, len(data))
	w := m.newRunWriter(i, target, wrote)
	for n := range data {
		places[n] = data[n].info
		w.expectBlock(data[n].block)
	}
	err := m.reader.Contents(ctx, places, func(n int, content []byte, err error) error {
		j := data[n].block
		e := m.Geometry.Block(i, j)
		if err := table.CheckBlock(entries[j].Object, e.Length, content, err); err != nil {
			return fmt.Errorf("at %d: %w", e.Offset, err)
		}
		return w.addBlock(ctx, j, content)
	})
	if err != nil {
		return err
	}
	return w.flushRuns(ctx)
}

// locatedBlock is a block of a region, and where it lies in the packs.
type locatedBlock struct {
	block int
	info  content.Info
}

// restoreHoles makes the holes of region i read as zeroes, adjacent ones at once.
func (m *Image) restoreHoles(ctx context.Context, i int, entries []object.IndirectObjectEntry, target Target) error {
	var holes extent.Set
	for j, entry := range entries {
		if m.IsHole(entry) {
			holes.Append(m.Geometry.Block(i, j))
		}
	}
	for e := range holes.All() {
		if err := target.Zero(ctx, e); err != nil {
			return fmt.Errorf("zero %s: %w", e, err)
		}
	}
	return nil
}

// DataBytes returns how much data, holes excluded, the regions have for which skip, if not nil, is false. That is what Restore
// writes if it gets skip as Done. It reads each table of a region once, and keeps them for Restore as far as there is room.
func (m *Image) DataBytes(ctx context.Context, skip func(region int) bool) (int64, error) {
	alike := map[object.ID][]int{}
	for i, region := range m.List {
		if skip == nil || !skip(i) {
			alike[region.Object] = append(alike[region.Object], i)
		}
	}
	var sum atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(table.DefaultWorkers)
	for _, regions := range alike {
		group.Go(func() error {
			entries, err := m.ReadRegion(ctx, regions[0])
			if err != nil {
				return err
			}
			for _, e := range entries {
				if !m.IsHole(e) {
					sum.Add(e.Length * int64(len(regions)))
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return 0, err
	}
	return sum.Load(), nil
}
