package repository

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/object"
	"golang.org/x/sync/errgroup"

	"github.com/varvebackup/varve/internal/extent"
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
	// Workers fetch, check and write in parallel; 0: DefaultWorkers.
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
// read ends the restore with ErrCorrupt, and nothing wrong is written in its place.
func (m *Image) Restore(ctx context.Context, target Target, o RestoreOptions) error {
	if o.Workers <= 0 {
		o.Workers = DefaultWorkers
	}
	group, inner := errgroup.WithContext(ctx)
	var next atomic.Int64
	for range min(o.Workers, len(m.list)) {
		group.Go(func() error {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(m.list) || inner.Err() != nil {
					return inner.Err()
				}
				if o.Done != nil && o.Done(i) {
					continue
				}
				if err := m.restoreRegion(inner, i, target, o.Wrote); err != nil {
					return err
				}
				if o.Finished != nil {
					o.Finished(i, m.geometry.region(i))
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
	table := m.known(i)
	if table == nil {
		var err error
		if table, err = readBlocks(ctx, m.r, m.geometry, i, m.list[i].Object); err != nil {
			return err
		}
	}
	if err := m.restoreHoles(ctx, i, table, target); err != nil {
		return err
	}
	var data []placed
	for j, entry := range table {
		if m.zero(entry) {
			continue
		}
		id, err := blockID(entry.Object)
		if err != nil {
			return fmt.Errorf("at %d: %w", m.geometry.blockOf(i, j).Offset, err)
		}
		data = append(data, placed{block: j, info: m.r.place(ctx, id)})
	}
	slices.SortFunc(data, func(a, b placed) int { return byPlace(a.info, b.info) })
	places := make([]content.Info, len(data))
	for n := range data {
		places[n] = data[n].info
	}
	return m.r.Contents(ctx, places, func(n int, content []byte, err error) error {
		j := data[n].block
		e := m.geometry.blockOf(i, j)
		if err := blockRead(table[j].Object, e.Length, content, err); err != nil {
			return fmt.Errorf("at %d: %w", e.Offset, err)
		}
		if err := target.WriteAt(ctx, content, e.Offset); err != nil {
			return fmt.Errorf("write %s: %w", e, err)
		}
		if wrote != nil {
			wrote(e.Length)
		}
		return nil
	})
}

// placed is a block of a region, and where it lies in the packs.
type placed struct {
	block int
	info  content.Info
}

// byPlace orders contents as they lie in the packs.
func byPlace(a, b content.Info) int {
	return cmp.Or(strings.Compare(string(a.PackBlobID), string(b.PackBlobID)), cmp.Compare(a.PackOffset, b.PackOffset))
}

// restoreHoles makes the holes of region i read as zeroes, adjacent ones at once.
func (m *Image) restoreHoles(ctx context.Context, i int, table []object.IndirectObjectEntry, target Target) error {
	var holes extent.Set
	for j, entry := range table {
		if m.zero(entry) {
			holes.Append(m.geometry.blockOf(i, j))
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
	for i, region := range m.list {
		if skip == nil || !skip(i) {
			alike[region.Object] = append(alike[region.Object], i)
		}
	}
	var sum atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(DefaultWorkers)
	for _, regions := range alike {
		group.Go(func() error {
			table, err := m.blocks(ctx, regions[0])
			if err != nil {
				return err
			}
			for _, e := range table {
				if !m.zero(e) {
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
