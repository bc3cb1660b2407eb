package repository

import (
	"context"
	"fmt"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/varvebackup/varve/internal/extent"
)

// Target takes a disk that is restored. Its methods are called from several goroutines.
type Target interface {
	WriteAt(ctx context.Context, p []byte, offset int64) error
	// Zero makes e read as zeroes. A target that already does may do nothing.
	Zero(ctx context.Context, e extent.Extent) error
	// Sync makes durable what was written.
	Sync(ctx context.Context) error
}

// RestoreOptions are for Restore.
type RestoreOptions struct {
	// Workers fetch, check and write side by side; 0: DefaultWorkers.
	Workers int
	// Done are regions that need not be written again, and Finished is called with each that was, from several goroutines.
	Done     func(region int) bool
	Finished func(region int, e extent.Extent)
}

// Restore writes the whole disk to target and syncs it. Each block is authenticated before it is written; one that cannot
// be read ends the restore with ErrCorrupt, and nothing wrong is written in its place.
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
				if err := m.restoreRegion(inner, i, target); err != nil {
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

func (m *Image) restoreRegion(ctx context.Context, i int, target Target) error {
	table, err := readBlocks(ctx, m.r, m.geometry, i, m.list[i].Object)
	if err != nil {
		return err
	}
	var hole extent.Extent
	flush := func() error {
		if hole.Empty() {
			return nil
		}
		e := hole
		hole = extent.Extent{}
		if err := target.Zero(ctx, e); err != nil {
			return fmt.Errorf("zero %s: %w", e, err)
		}
		return nil
	}
	for j, entry := range table {
		e := m.geometry.blockOf(i, j)
		if m.zero(entry) {
			if hole.Empty() {
				hole.Offset = e.Offset
			}
			hole.Length = e.End() - hole.Offset
			continue
		}
		if err := flush(); err != nil {
			return err
		}
		data, err := readBlock(ctx, m.r, entry.Object, e.Length)
		if err != nil {
			return fmt.Errorf("at %d: %w", e.Offset, err)
		}
		if err := target.WriteAt(ctx, data, e.Offset); err != nil {
			return fmt.Errorf("write %s: %w", e, err)
		}
	}
	return flush()
}
