package reflink

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/varvebackup/varve/internal/durable"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/disk/piecehash"
)

// Snapshot implements [disk.Disk].
func (d *Disk) Snapshot(ctx context.Context, head, name disk.Name, seal disk.Seal) error {
	if err := d.sealHead(ctx, head, name, seal); err != nil {
		return fmt.Errorf("make %s %q of head %q: %w", seal.Kind, name, head, describeFull(err))
	}
	return nil
}

func (d *Disk) sealHead(ctx context.Context, head, name disk.Name, seal disk.Seal) error {
	wanted := entry{Name: name, UID: seal.UID, Kind: seal.Kind, Bytes: 1}
	if err := errors.Join(wanted.validate(), seal.Validate(), ctx.Err()); err != nil {
		return err
	}
	wanted.Bytes = seal.Bytes
	wanted.Checksum = seal.Checksum
	source, done, err := d.beginSnapshot(head, wanted, seal)
	if done && disk.IsSHA256(seal.Checksum) {
		return d.matchExisting(ctx, name, seal.Checksum)
	}
	if err != nil || done {
		return err
	}
	defer d.endSnapshot(source)
	wanted.Bytes, wanted.Origin = cmp.Or(seal.Bytes, source.object.Bytes), source.object.UID
	if seal.Kind == disk.KindImage {
		group := filepath.Join(imagesDir, string(seal.UID))
		err := d.writeImage(ctx, &wanted, group, source, seal)
		return d.finishPending(wanted, group, err)
	}
	err = d.writeSnapshot(ctx, &wanted, source)
	return d.finishSnapshot(wanted, source.object, err)
}

// matchExisting compares the SHA-256 of what was sealed before, which the disk does not record.
func (d *Disk) matchExisting(ctx context.Context, name disk.Name, wanted string) (err error) {
	l, err := d.openLease(ctx, name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	h, err := hashFile(ctx, l.Path(), wanted)
	if err != nil {
		return err
	}
	return h.MatchChecksum(wanted)
}

// beginSnapshot reserves the new object, and keeps its head from being deleted or sealed twice at once. Done means that
// the object is there.
func (d *Disk) beginSnapshot(
	head disk.Name, wanted entry, seal disk.Seal,
) (source *lease, done bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.checkOpen(context.Background()); err != nil {
		return nil, false, err
	}
	from, err := d.findIntact(head)
	if there, ok := d.findByUID(wanted.UID); ok && !d.damaged[there.UID] {
		if isSealed(there.entry, wanted, from.entry, err == nil) {
			return nil, true, nil
		}
	}
	if err != nil {
		return nil, false, err
	}
	if err := d.checkFree(wanted.Name, wanted.UID); err != nil {
		return nil, false, err
	}
	if err := seal.CheckHead(d.describe(from), d.sealing[from.UID], d.leases[from.UID]); err != nil {
		return nil, false, err
	}
	if wanted.Kind == disk.KindImage {
		if err := d.prepareGroup(filepath.Join(imagesDir, string(wanted.UID))); err != nil {
			return nil, false, err
		}
	}
	d.pending[wanted.UID] = wanted.Name
	d.sealing[from.UID] = true
	if seal.Exclusive {
		d.exclusive[from.UID] = true
	}
	return d.leaseObject(from), false, nil
}

// isSealed reports whether an object is what wanted, which Snapshot was called with, makes of a head. The head may be gone.
func isSealed(there, wanted, head entry, headExists bool) bool {
	if headExists && (there.Origin != head.UID || there.Bytes != cmp.Or(wanted.Bytes, head.Bytes)) {
		return false
	}
	return there.Name == wanted.Name && there.Kind == wanted.Kind &&
		(wanted.Bytes == 0 || there.Bytes == wanted.Bytes) &&
		(wanted.Checksum == "" || disk.IsSHA256(wanted.Checksum) || there.Checksum == wanted.Checksum)
}

func (d *Disk) endSnapshot(source *lease) {
	d.mu.Lock()
	delete(d.sealing, source.object.UID)
	delete(d.exclusive, source.object.UID)
	d.mu.Unlock()
	_ = source.Close() // it has no error
}

// takeData makes a durable file of what a head has. If that was exclusive, the head may be leased again from then on.
func (d *Disk) takeData(ctx context.Context, source *lease, path string, size int64) error {
	if err := d.cloneData(ctx, source, path, size); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.exclusive, source.object.UID)
	return nil
}

// writeImage makes the directory of an image, with the checksum of what was read back.
func (d *Disk) writeImage(
	ctx context.Context, wanted *entry, group string, source *lease, seal disk.Seal,
) error {
	dir := filepath.Join(d.dir, group+newSuffix)
	data := filepath.Join(dir, "data")
	if err := d.takeData(ctx, source, data, wanted.Bytes); err != nil {
		return err
	}
	if seal.Exclusive { // the volume may be deleted while its image is read back
		if err := source.Close(); err != nil {
			return err
		}
	}
	h, err := readBack(ctx, data, wanted.Bytes, seal)
	if err != nil {
		return err
	}
	wanted.Checksum = h.Checksum()
	if err := durable.Write(filepath.Join(dir, hashesFile), h.Encode()); err != nil {
		return err
	}
	if err := d.reach("hashes"); err != nil {
		return err
	}
	if err := d.sealFile(data); err != nil {
		return err
	}
	return d.writeMetadata(dir, metadata{Format: formatVersion, Objects: []entry{*wanted}})
}

// readBack returns the hashes of a file that was just cloned, if it has what it must have.
func readBack(ctx context.Context, path string, size int64, seal disk.Seal) (piecehash.Hashes, error) {
	if len(seal.Pieces) > 0 {
		return matchPieces(ctx, path, size, seal)
	}
	h, err := hashFile(ctx, path, seal.Checksum)
	if err != nil {
		return piecehash.Hashes{}, err
	}
	return h, h.MatchChecksum(seal.Checksum)
}

// writeSnapshot makes the file of a snapshot, which does not exist before the replica's metadata has it.
func (d *Disk) writeSnapshot(ctx context.Context, wanted *entry, source *lease) error {
	path := d.dataPath(located{entry: *wanted, group: source.object.group})
	if err := errors.Join(removeTree(path), removeTree(path+newSuffix)); err != nil { // of a call that failed
		return err
	}
	if err := d.takeData(ctx, source, path+newSuffix, wanted.Bytes); err != nil {
		return err
	}
	if wanted.Checksum != "" {
		h, err := readBack(ctx, path+newSuffix, wanted.Bytes, disk.Seal{Checksum: wanted.Checksum})
		if err != nil {
			return err
		}
		wanted.Checksum = h.Checksum()
	}
	if err := durable.Rename(path+newSuffix, path); err != nil {
		return err
	}
	if err := d.reach("rename"); err != nil {
		return err
	}
	return d.sealFile(path)
}

// sealFile makes a file immutable, durably.
func (d *Disk) sealFile(path string) error {
	if err := errors.Join(setImmutable(path, true), durable.Sync(path)); err != nil {
		return err
	}
	return d.reach("immutable")
}

// finishSnapshot puts a snapshot into the metadata of its replica, which makes it exist, or removes it if it failed.
func (d *Disk) finishSnapshot(made entry, head located, err error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.pending, made.UID)
	next := d.groups[head.group].appended(made)
	if err == nil {
		err = d.writeMetadata(filepath.Join(d.dir, head.group), next)
	}
	if err != nil {
		return errors.Join(err, d.discardSnapshot(made, head.group))
	}
	d.groups[head.group] = next
	return d.reach("done")
}

// discardSnapshot removes the file of a snapshot that was not made, unless the metadata that has it may be on the disk.
func (d *Disk) discardSnapshot(failed entry, group string) error {
	written, err := readMetadata(filepath.Join(d.dir, group, metadataFile))
	if err != nil {
		return fmt.Errorf("%w: %w", errclass.Unknown, err)
	}
	if len(written.Objects) != len(d.groups[group].Objects) {
		d.groups[group] = written
		return errclass.Unknown
	}
	path := d.dataPath(located{entry: failed, group: group})
	return errors.Join(removeTree(path), removeTree(path+newSuffix))
}
