package reflink

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/durable"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/disk/piecehash"
)

// repairBlock is the smallest part of a piece that is written: the block of the file systems. What is right keeps its
// place, and stays shared with the clones.
const repairBlock = 4 << 10

// maxFailures is how many pieces that could not be fetched an error names.
const maxFailures = 10

// Repair implements [disk.Disk]. It makes the repaired file as a clone of the old one, in a directory of its own, and
// exchanges that directory with the old one in one step. So a crash leaves the damaged image or the repaired one.
func (d *Disk) Repair(ctx context.Context, name disk.Name, uid disk.UID, fetch disk.FetchPiece) error {
	if err := d.repairImage(ctx, name, uid, fetch); err != nil {
		return fmt.Errorf("repair %q: %w", name, describeFull(err))
	}
	return nil
}

func (d *Disk) repairImage(ctx context.Context, name disk.Name, uid disk.UID, fetch disk.FetchPiece) (err error) {
	source, err := d.beginRepair(ctx, name, uid)
	if err != nil {
		return err
	}
	defer d.endRepair(source)
	o := source.object
	encoded, pieces, err := d.loadHashes(o)
	if err != nil {
		return err
	}
	dir := filepath.Join(d.dir, o.group+newSuffix)
	if err := errors.Join(removeTree(dir), makeDirectory(dir)); err != nil {
		return err
	}
	err = d.writeRepaired(ctx, source, dir, pieces, fetch)
	if err == nil {
		err = durable.Write(filepath.Join(dir, hashesFile), encoded)
	}
	if err == nil {
		err = d.sealFile(filepath.Join(dir, "data"))
	}
	if err == nil {
		err = d.writeMetadata(dir, metadata{Format: formatVersion, Objects: []entry{o.entry}})
	}
	if err != nil {
		return errors.Join(err, removeTree(dir))
	}
	return d.exchangeGroup(o, dir)
}

// beginRepair leases an image, and reserves it, because a second repair would write the same files. It refuses while a
// clone of the image is being made: the clone would share blocks with what the image was, and nobody could find that
// out later.
func (d *Disk) beginRepair(ctx context.Context, name disk.Name, uid disk.UID) (*lease, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	o, err := d.findImage(ctx, name, uid)
	if err != nil {
		return nil, err
	}
	if _, reserved := d.pending[uid]; reserved {
		return nil, errclass.Errorf(disk.ErrBusy, "another repair of it has not ended: try again")
	}
	for clone, from := range d.cloning {
		if from == uid {
			return nil, errclass.Errorf(disk.ErrBusy, "%q is being cloned from it: try again", d.pending[clone])
		}
	}
	d.pending[uid] = name
	return d.leaseObject(o), nil
}

func (d *Disk) endRepair(source *lease) {
	d.mu.Lock()
	delete(d.pending, source.object.UID)
	d.mu.Unlock()
	_ = source.Close() // it has no error
}

// leaseAny leases an object, damaged or not.
func (d *Disk) leaseAny(ctx context.Context, name disk.Name) (*lease, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	o, err := d.findByName(name)
	if err = errors.Join(d.checkOpen(ctx), err); err != nil {
		return nil, err
	}
	return d.leaseObject(o), nil
}

// writeRepaired makes the file of a repaired image. It reads a clone of the image, because nothing of the clone is in
// the page cache.
func (d *Disk) writeRepaired(
	ctx context.Context, source *lease, dir string, pieces []disk.PieceHash, fetch disk.FetchPiece,
) (err error) {
	path := filepath.Join(dir, "data")
	if err := d.cloneData(ctx, source, path, source.object.Bytes); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	has, want := make([]byte, pieceBytes), make([]byte, pieceBytes)
	var failures []error
	var written []int
	for i, hash := range pieces {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		offset := int64(i) * pieceBytes
		length := min(pieceBytes, source.object.Bytes-offset)
		there := has[:length]
		if _, err := f.ReadAt(there, offset); err != nil {
			there = nil
		} else if piecehash.Sum(there) == hash {
			continue
		}
		if err := fetch(ctx, i, there, want[:length]); err != nil {
			failures = append(failures, fmt.Errorf("fetch MiB %d: %w", i, err))
			continue
		}
		if piecehash.Sum(want[:length]) != hash {
			failures = append(failures, fmt.Errorf("%w: MiB %d of the other copy is not what was sealed", errclass.Corrupt, i))
			continue
		}
		if err := writeDifferent(f, there, want[:length], offset); err != nil {
			return err
		}
		written = append(written, i)
	}
	if len(failures) > 0 {
		return errors.Join(failures[:min(len(failures), maxFailures)]...)
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := d.reach("repaired"); err != nil {
		return err
	}
	return checkWritten(f, written, pieces, source.object.Bytes)
}

// writeDifferent writes the blocks of a piece that differ from what is there. If there is nil, it writes all of them.
func writeDifferent(f *os.File, there, want []byte, offset int64) error {
	for at := 0; at < len(want); at += repairBlock {
		end := min(at+repairBlock, len(want))
		if there != nil && bytes.Equal(there[at:end], want[at:end]) {
			continue
		}
		if _, err := f.WriteAt(want[at:end], offset+int64(at)); err != nil {
			return err
		}
	}
	return nil
}

// checkWritten reads pieces that were written and synced from the disk again.
func checkWritten(f *os.File, written []int, pieces []disk.PieceHash, size int64) error {
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return fmt.Errorf("drop the page cache of %s: %w", f.Name(), err)
	}
	buffer := make([]byte, pieceBytes)
	for _, i := range written {
		offset := int64(i) * pieceBytes
		piece := buffer[:min(pieceBytes, size-offset)]
		if _, err := f.ReadAt(piece, offset); err != nil {
			return err
		}
		if piecehash.Sum(piece) != pieces[i] {
			return errclass.Errorf(errclass.Corrupt, "MiB %d was written, and the disk has something else", i)
		}
	}
	return nil
}

// exchangeGroup puts a repaired image in the place of the damaged one, which it removes.
func (d *Disk) exchangeGroup(o located, repaired string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	path := filepath.Join(d.dir, o.group)
	err := unix.Renameat2(unix.AT_FDCWD, repaired, unix.AT_FDCWD, path, unix.RENAME_EXCHANGE)
	if err != nil {
		return errors.Join(fmt.Errorf("exchange %s and %s: %w", repaired, path, err), removeTree(repaired))
	}
	if err := d.reach("exchange"); err != nil {
		return err
	}
	if err := durable.Sync(filepath.Dir(path)); err != nil {
		return fmt.Errorf("%w: %w", errclass.Unknown, err)
	}
	delete(d.damaged, o.UID)
	if err := d.reach("exchanged"); err != nil {
		return err
	}
	if err := removeTree(repaired); err != nil {
		return fmt.Errorf("it is repaired, but what it replaced is removed only when the disk is opened again: %w", err)
	}
	return d.reach("done")
}

// Place implements [disk.Disk].
func (d *Disk) Place(ctx context.Context, name disk.Name, within extent.Extent) ([]disk.Placed, error) {
	placed, err := d.placeObject(ctx, name, within)
	if err != nil {
		return nil, fmt.Errorf("find the place of %s of %q: %w", within, name, err)
	}
	return placed, nil
}

func (d *Disk) placeObject(
	ctx context.Context, name disk.Name, within extent.Extent,
) (placed []disk.Placed, err error) {
	l, err := d.leaseAny(ctx, name)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	f, err := os.Open(l.Path())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	for m, err := range fileMappings(ctx, f, min(l.object.Bytes, within.End())) {
		if err != nil {
			return nil, err
		}
		part := m.Intersect(within)
		if part.Empty() {
			continue
		}
		at := m.physical + part.Offset - m.Offset
		if !m.placed {
			at = disk.Unplaced
		}
		placed = append(placed, disk.Placed{Extent: part, Physical: at})
	}
	return placed, nil
}
