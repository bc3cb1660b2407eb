package diskguard

import (
	"context"
	"iter"

	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/store/disk"
)

// Wrap returns a disk whose calls are guarded. Sealing an object and listing its extents may take any time as long as
// the disk answers other calls: somebody has to look at it every now and then.
func (g *Guard) Wrap(d disk.Disk) disk.Disk { return &guarded{disk: d, guard: g} }

type guarded struct {
	disk  disk.Disk
	guard *Guard
}

// List implements [disk.Disk].
func (d *guarded) List(ctx context.Context) ([]disk.Object, error) {
	return Do(ctx, d.guard, "list its objects", nil, d.disk.List)
}

// Create implements [disk.Disk].
func (d *guarded) Create(ctx context.Context, head disk.Name, from disk.Source) error {
	return doWithin(ctx, d.guard, "create "+string(head), createPatience, func(ctx context.Context) error {
		return d.disk.Create(ctx, head, from)
	})
}

// Grow implements [disk.Disk].
func (d *guarded) Grow(ctx context.Context, head disk.Name, bytes int64) error {
	return doWithin(ctx, d.guard, "grow "+string(head), createPatience, func(ctx context.Context) error {
		return d.disk.Grow(ctx, head, bytes)
	})
}

// Snapshot implements [disk.Disk].
func (d *guarded) Snapshot(ctx context.Context, head, name disk.Name, seal disk.Seal) error {
	return doWithin(ctx, d.guard, "seal "+string(name), endless, func(ctx context.Context) error {
		return d.disk.Snapshot(ctx, head, name, seal)
	})
}

// Delete implements [disk.Disk].
func (d *guarded) Delete(ctx context.Context, name disk.Name) error {
	return doWithin(ctx, d.guard, "delete "+string(name), deletePatience, func(ctx context.Context) error {
		return d.disk.Delete(ctx, name)
	})
}

// Open implements [disk.Disk]. A lease that comes too late ends at once.
func (d *guarded) Open(ctx context.Context, name disk.Name) (disk.Lease, error) {
	discard := func(l disk.Lease) { _ = l.Close() } // nobody waits for it
	return Do(ctx, d.guard, "open "+string(name), discard, func(ctx context.Context) (disk.Lease, error) {
		return d.disk.Open(ctx, name)
	})
}

// Pieces implements [disk.Disk].
func (d *guarded) Pieces(ctx context.Context, name disk.Name) ([]disk.PieceHash, error) {
	return Do(ctx, d.guard, "read the hashes of "+string(name), nil, func(ctx context.Context) ([]disk.PieceHash, error) {
		return d.disk.Pieces(ctx, name)
	})
}

// ReadPiece implements [disk.Disk]. A call that comes too late does not write into p.
func (d *guarded) ReadPiece(ctx context.Context, name disk.Name, uid disk.UID, piece int, p []byte) error {
	read := func(ctx context.Context) ([]byte, error) {
		own := make([]byte, len(p))
		return own, d.disk.ReadPiece(ctx, name, uid, piece, own)
	}
	own, err := Do(ctx, d.guard, "read a piece of "+string(name), nil, read)
	if err == nil {
		copy(p, own)
	}
	return err
}

// MarkDamaged implements [disk.Disk].
func (d *guarded) MarkDamaged(ctx context.Context, name disk.Name, uid disk.UID, why string) error {
	return doWithin(ctx, d.guard, "mark "+string(name), Patience, func(ctx context.Context) error {
		return d.disk.MarkDamaged(ctx, name, uid, why)
	})
}

// Repair implements [disk.Disk].
func (d *guarded) Repair(ctx context.Context, name disk.Name, uid disk.UID, fetch disk.FetchPiece) error {
	return doWithin(ctx, d.guard, "repair "+string(name), endless, func(ctx context.Context) error {
		return d.disk.Repair(ctx, name, uid, fetch)
	})
}

// Place implements [disk.Disk].
func (d *guarded) Place(ctx context.Context, name disk.Name, within extent.Extent) ([]disk.Placed, error) {
	return Do(ctx, d.guard, "place "+string(name), nil, func(ctx context.Context) ([]disk.Placed, error) {
		return d.disk.Place(ctx, name, within)
	})
}

// Users implements [disk.Disk].
func (d *guarded) Users(ctx context.Context, name disk.Name) (int, error) {
	return Do(ctx, d.guard, "count the users of "+string(name), nil, func(ctx context.Context) (int, error) {
		return d.disk.Users(ctx, name)
	})
}

// Usage implements [disk.Disk].
func (d *guarded) Usage(ctx context.Context) (disk.Usage, error) {
	return Do(ctx, d.guard, "say how much is free", nil, d.disk.Usage)
}

// Changed implements [disk.Disk]. The disk's own iteration goes on when the extent that it gave has been dealt with, so
// that it ends no earlier than this one.
func (d *guarded) Changed(ctx context.Context, name, since disk.Name) iter.Seq2[extent.Extent, error] {
	return func(yield func(extent.Extent, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		found, next, ended := make(chan extent.Extent), make(chan struct{}), make(chan error, 1)
		list := func(ctx context.Context) error {
			for e, err := range d.disk.Changed(ctx, name, since) {
				if err != nil {
					return err
				}
				select {
				case found <- e:
				case <-ctx.Done():
					return ctx.Err()
				}
				select {
				case <-next:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			return nil
		}
		go func() { ended <- doWithin(ctx, d.guard, "list the extents of "+string(name), endless, list) }()
		for {
			select {
			case e := <-found:
				if !yield(e, nil) {
					cancel()
					<-ended // so that the object may be deleted now
					return
				}
			case err := <-ended:
				if err != nil {
					yield(extent.Extent{}, err)
				}
				return
			}
			select {
			case next <- struct{}{}:
			case err := <-ended:
				yield(extent.Extent{}, err)
				return
			}
		}
	}
}
