package spdk

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/store/disk"
)

// Changed implements [disk.Disk], in whole clusters. Two objects differ at most where a volume has clusters of its own
// that is a parent of one of them, and not of the other.
func (d *Disk) Changed(ctx context.Context, name, since disk.Name) iter.Seq2[extent.Extent, error] {
	return func(yield func(extent.Extent, error) bool) {
		found, end, err := d.compareObjects(ctx, name, since)
		if err != nil {
			yield(extent.Extent{}, fmt.Errorf("list what changed in %q since %q: %w", name, since, err))
			return
		}
		defer end()
		for _, e := range found {
			if err := ctx.Err(); err != nil {
				yield(extent.Extent{}, err)
				return
			}
			if !yield(e, nil) {
				return
			}
		}
	}
}

// compareObjects returns the extents in which two objects may differ, which are leased until end is called.
func (d *Disk) compareObjects(
	ctx context.Context, name, since disk.Name,
) (found []extent.Extent, end func(), err error) {
	newer, err := d.leaseIntact(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	release := func() { _ = newer.Close() } // it has no error
	defer func() {
		if err != nil {
			release()
		}
	}()
	var older *lease
	if since != "" {
		if older, err = d.leaseIntact(ctx, since); err != nil {
			return nil, nil, err
		}
		release = func() { _ = errors.Join(newer.Close(), older.Close()) } // they have no errors
		if older.object.Kind == disk.KindHead {
			return nil, nil, errclass.Errorf(errclass.Invalid, "%q is a head, which changes: name a snapshot or an image", since)
		}
	}
	v, err := d.lockView(ctx) // nothing is deleted meanwhile, which would give clusters to another volume
	if err != nil {
		return nil, nil, err
	}
	defer d.unlock()
	var olderChain []string
	if older != nil {
		olderChain = v.chain(older.object.volume)
	}
	found, err = d.compareChains(ctx, v, newer.object, olderChain)
	return found, release, err
}

// compareChains returns the clusters, joined where they touch, in which an object may differ from another one, whose
// volumes are given. Without any, these are all that the object has. The caller has the lock.
func (d *Disk) compareChains(ctx context.Context, v *view, o object, older []string) ([]extent.Extent, error) {
	chain := v.chain(o.volume)
	all := append(slices.Clone(chain), older...)
	size := v.store.ClusterBytes
	clusters := (o.Bytes + size - 1) / size
	// A volume that is smaller than its parent hides the rest of it, and so do all that are clones of the small one. From
	// there on, what the common parents have counts, too.
	hidden := clusters
	maps := map[string]bitmap{}
	for _, name := range all {
		if slices.Contains(chain, name) != slices.Contains(older, name) {
			hidden = min(hidden, v.volumes[name].Blocks*v.store.BlockBytes/size)
		}
	}
	for _, name := range all {
		common := slices.Contains(chain, name) && slices.Contains(older, name)
		if _, known := maps[name]; known || (common && hidden == clusters) {
			continue
		}
		bits, err := d.client.readAllocated(ctx, v.store, name)
		if err != nil {
			return nil, err
		}
		maps[name] = bits
	}
	var found []extent.Extent
	for c := range clusters {
		differs := slices.ContainsFunc(all, func(name string) bool {
			common := slices.Contains(chain, name) && slices.Contains(older, name)
			return (!common || c >= hidden) && maps[name].has(c)
		})
		if !differs {
			continue
		}
		e := extent.Extent{Offset: c * size, Length: min(size, o.Bytes-c*size)}
		if n := len(found); n > 0 && found[n-1].End() == e.Offset {
			found[n-1].Length += e.Length
			continue
		}
		found = append(found, e)
	}
	return found, nil
}

// Place implements [disk.Disk]. The target does not tell where its clusters are.
func (d *Disk) Place(ctx context.Context, name disk.Name, within extent.Extent) ([]disk.Placed, error) {
	placed, err := d.placeObject(ctx, name, within)
	if err != nil {
		return nil, fmt.Errorf("find the data of %q: %w", name, err)
	}
	return placed, nil
}

func (d *Disk) placeObject(ctx context.Context, name disk.Name, within extent.Extent) ([]disk.Placed, error) {
	v, err := d.lockView(ctx)
	if err != nil {
		return nil, err
	}
	defer d.unlock()
	o, err := v.findByName(name)
	if err != nil {
		return nil, err
	}
	all, err := d.compareChains(ctx, v, o, nil)
	if err != nil {
		return nil, err
	}
	var placed []disk.Placed
	for _, e := range all {
		begin, end := max(e.Offset, within.Offset), min(e.End(), within.End())
		if begin < end {
			placed = append(placed, disk.Placed{
				Extent: extent.Extent{Offset: begin, Length: end - begin}, Physical: disk.Unplaced,
			})
		}
	}
	return placed, nil
}
