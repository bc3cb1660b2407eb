package reflink

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/store/disk"
)

// Changed implements [disk.Disk]. It compares physical addresses: while both files live, and the older one is
// immutable, they have a block at the same address only if neither has written it since they were one. FIEMAP's flag
// "shared" would not do: a head shares everything with its newest snapshot.
func (d *Disk) Changed(ctx context.Context, name, since disk.Name) iter.Seq2[extent.Extent, error] {
	return func(yield func(extent.Extent, error) bool) {
		stopped := false
		err := d.compareObjects(ctx, name, since, func(e extent.Extent) bool {
			stopped = !yield(e, nil)
			return !stopped
		})
		if err != nil && !stopped {
			yield(extent.Extent{}, fmt.Errorf("list what changed in %q since %q: %w", name, since, err))
		}
	}
}

func (d *Disk) compareObjects(ctx context.Context, name, since disk.Name, found func(extent.Extent) bool) (err error) {
	newer, size, err := d.openMapped(ctx, name, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, newer.Close()) }()
	older := func(func(mapping, error) bool) {} // a file of holes
	if since != "" {
		file, olderSize, err := d.openMapped(ctx, since, true)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, file.Close()) }()
		older = fileMappings(ctx, file.File, min(size, olderSize))
	}
	for e, err := range compareMappings(fileMappings(ctx, newer.File, size), older, size) {
		if err != nil {
			return err
		}
		if !found(e) {
			return nil
		}
	}
	return nil
}

// leasedFile is an open file of an object that cannot be deleted before Close.
type leasedFile struct {
	*os.File
	lease disk.Lease
}

func (f leasedFile) Close() error { return errors.Join(f.File.Close(), f.lease.Close()) }

// openMapped opens an object to list its extents, and returns its size.
func (d *Disk) openMapped(ctx context.Context, name disk.Name, sealed bool) (leasedFile, int64, error) {
	l, err := d.openLease(ctx, name)
	if err != nil {
		return leasedFile{}, 0, err
	}
	if sealed && l.object.Kind == disk.KindHead {
		err := errclass.Errorf(errclass.Invalid, "%q is a head, which changes: name a snapshot or an image", name)
		return leasedFile{}, 0, errors.Join(err, l.Close())
	}
	f, err := os.Open(l.Path())
	if err != nil {
		return leasedFile{}, 0, errors.Join(err, l.Close())
	}
	return leasedFile{File: f, lease: l}, l.object.Bytes, nil
}

// cursor is one of two files that are compared.
type cursor struct {
	next func() (mapping, error, bool)
	at   mapping // covers the position, or comes after it
	more bool    // at is valid
}

// advance moves the cursor past everything that ends at or before position.
func (c *cursor) advance(position int64) error {
	for c.more && c.at.End() <= position {
		var err error
		c.at, err, c.more = c.next()
		if err != nil {
			return err
		}
	}
	return nil
}

// boundary returns whether position is mapped, and how far that holds.
func (c *cursor) boundary(position, size int64) (mapped bool, end int64) {
	switch {
	case !c.more:
		return false, size
	case c.at.Offset > position:
		return false, min(size, c.at.Offset)
	}
	return true, min(size, c.at.End())
}

// sameBytes reports whether two mapped cursors have the same block at position.
func sameBytes(a, b *cursor, position int64) bool {
	return a.at.placed && b.at.placed && a.at.physical+position-a.at.Offset == b.at.physical+position-b.at.Offset
}

// compareMappings returns, joined where they touch, the extents of [0, size) in which two files of ordered mappings may
// differ: one of them has a hole there, or they are not at the same place.
func compareMappings(newer, older iter.Seq2[mapping, error], size int64) iter.Seq2[extent.Extent, error] {
	return func(yield func(extent.Extent, error) bool) {
		nextNewer, stopNewer := iter.Pull2(newer)
		defer stopNewer()
		nextOlder, stopOlder := iter.Pull2(older)
		defer stopOlder()
		a, b := cursor{next: nextNewer, more: true}, cursor{next: nextOlder, more: true}
		var found extent.Extent
		for position := int64(0); position < size; {
			if err := errors.Join(a.advance(position), b.advance(position)); err != nil {
				yield(extent.Extent{}, err)
				return
			}
			inNewer, endNewer := a.boundary(position, size)
			inOlder, endOlder := b.boundary(position, size)
			end := min(endNewer, endOlder)
			if inNewer != inOlder || (inNewer && !sameBytes(&a, &b, position)) {
				if found.End() != position && !found.Empty() {
					if !yield(found, nil) {
						return
					}
					found = extent.Extent{}
				}
				if found.Empty() {
					found.Offset = position
				}
				found.Length = end - found.Offset
			}
			position = end
		}
		if !found.Empty() {
			yield(found, nil)
		}
	}
}
