package spdk

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/disk/piecehash"
)

// Snapshot implements [disk.Disk].
func (d *Disk) Snapshot(ctx context.Context, head, name disk.Name, wanted disk.Seal) error {
	if err := d.sealHead(ctx, head, name, wanted); err != nil {
		return fmt.Errorf("make %s %q of head %q: %w", wanted.Kind, name, head, err)
	}
	return nil
}

func (d *Disk) sealHead(ctx context.Context, head, name disk.Name, wanted disk.Seal) error {
	if err := errors.Join(name.Validate(), wanted.Validate()); err != nil {
		return err
	}
	v, err := d.lockView(ctx)
	if err != nil {
		return err
	}
	source, done, err := d.beginSnapshot(v, head, name, wanted)
	d.unlock()
	if done && disk.IsSHA256(wanted.Checksum) {
		return d.matchExisting(ctx, name, wanted.Checksum)
	}
	if err != nil || done {
		return err
	}
	made := entry{
		Format: formatVersion, Name: name, UID: wanted.UID, Kind: wanted.Kind, Origin: source.object.UID,
		Bytes: cmp.Or(wanted.Bytes, source.object.Bytes), Sealed: wanted.Kind == disk.KindImage || wanted.Checksum != "",
	}
	if wanted.Kind == disk.KindSnapshot {
		made.Volume = source.object.Volume
	}
	err = d.makeSealed(ctx, made, source, wanted)
	if err != nil {
		err = joinCleanup(err, d.discardSealed(context.WithoutCancel(ctx), made, source))
	}
	d.endSnapshot(made.UID, source)
	return err
}

// beginSnapshot reserves the new object, and keeps its head from being deleted or sealed twice at once. Done means that
// the object is there. The caller has the lock.
func (d *Disk) beginSnapshot(v *view, head, name disk.Name, wanted disk.Seal) (source *lease, done bool, err error) {
	from, err := v.findIntact(head)
	if there, ok := v.objects[wanted.UID]; ok && there.seal.Damaged == "" {
		if isSealed(there, name, wanted, from, err == nil) {
			return nil, true, nil
		}
	}
	if err != nil {
		return nil, false, err
	}
	if err := d.checkFree(v, name, wanted.UID); err != nil {
		return nil, false, err
	}
	if err := wanted.CheckHead(v.describe(from), d.sealing[from.UID], d.leases[from.UID]); err != nil {
		return nil, false, err
	}
	d.pending[wanted.UID] = name
	d.sealing[from.UID] = true
	if wanted.Exclusive {
		d.exclusive[from.UID] = true
	}
	return d.leaseObject(from), false, nil
}

// isSealed reports whether an object is what Snapshot makes of a head. The head may be gone.
func isSealed(there object, name disk.Name, wanted disk.Seal, head object, headExists bool) bool {
	if headExists && (there.Origin != head.UID || there.Bytes != cmp.Or(wanted.Bytes, head.Bytes)) {
		return false
	}
	return there.Name == name && there.Kind == wanted.Kind && (wanted.Bytes == 0 || there.Bytes == wanted.Bytes) &&
		(wanted.Checksum == "" || disk.IsSHA256(wanted.Checksum) || there.seal.Checksum == wanted.Checksum)
}

func (d *Disk) endSnapshot(made disk.UID, source *lease) {
	d.lock <- struct{}{}
	delete(d.pending, made)
	delete(d.sealing, source.object.UID)
	delete(d.exclusive, source.object.UID)
	d.unlock()
	_ = source.Close() // it has no error
}

// matchExisting compares the SHA-256 of what was sealed before, which the disk does not record.
func (d *Disk) matchExisting(ctx context.Context, name disk.Name, wanted string) (err error) {
	data, err := d.openObject(ctx, name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, data.Close()) }()
	h, err := piecehash.Read(ctx, io.NewSectionReader(data, 0, data.Bytes()), data.Bytes(), wanted)
	if err != nil {
		return err
	}
	return h.MatchChecksum(wanted)
}

// makeSealed makes the volumes of a snapshot or an image. The head may be leased again as soon as its data is taken,
// and that of an image deleted, too.
func (d *Disk) makeSealed(ctx context.Context, made entry, source *lease, wanted disk.Seal) error {
	s, err := d.takeData(ctx, made, source)
	if err != nil {
		return err
	}
	if wanted.Exclusive && made.Kind == disk.KindImage {
		_ = source.Close() // it has no error
	}
	if made.Kind == disk.KindImage {
		if err := d.freezeImage(ctx, s, made); err != nil {
			return err
		}
	}
	if !made.Sealed {
		return nil
	}
	h, err := d.readBack(ctx, made, wanted)
	if err != nil {
		return err
	}
	return d.writeSeal(ctx, made, h)
}

// takeData makes a snapshot of a head: the one that is wanted, or the base of an image.
func (d *Disk) takeData(ctx context.Context, made entry, source *lease) (store, error) {
	v, err := d.lockView(ctx)
	if err != nil {
		return store{}, err
	}
	defer d.unlock()
	if err := d.removeLeft(ctx, v, made); err != nil {
		return store{}, err
	}
	snapshot, attributes := volumeName(roleBase, made.UID), map[string]string(nil)
	if made.Kind == disk.KindSnapshot {
		data, err := json.Marshal(made)
		if err != nil {
			return store{}, err
		}
		snapshot, attributes = volumeName(roleSnapshot, made.UID), map[string]string{attribute: string(data)}
	}
	if err := d.client.snapshotVolume(ctx, v.store, source.object.volume, snapshot, attributes); err != nil {
		return store{}, err
	}
	delete(d.exclusive, source.object.UID)
	return v.store, nil
}

// removeLeft removes what an earlier call for an object has left, so that nothing of it gets into the new one. The
// caller has the lock.
func (d *Disk) removeLeft(ctx context.Context, v *view, made entry) error {
	for _, r := range []role{roleSeal, roleImage, roleSnapshot, roleGone, roleBase} {
		name := volumeName(r, made.UID)
		if _, left := v.volumes[name]; !left {
			continue
		}
		if err := d.client.deleteVolume(ctx, v.store, name); err != nil {
			return fmt.Errorf("remove the volume %s of an earlier object: %w", name, err)
		}
	}
	return nil
}

// freezeImage makes the volume of an image: a clone of its base, cut to the image's size, with zeroes in the rest of
// its last cluster, and frozen.
func (d *Disk) freezeImage(ctx context.Context, s store, made entry) error {
	volume := volumeName(roleImage, made.UID)
	if err := d.client.cloneVolume(ctx, s, volumeName(roleBase, made.UID), volume); err != nil {
		return err
	}
	if err := d.client.resizeVolume(ctx, s, volume, made.Bytes); err != nil {
		return err
	}
	if err := d.clearRest(ctx, volume, made.Bytes, roundToClusters(s, made.Bytes)); err != nil {
		return fmt.Errorf("clear what comes after the image: %w", err)
	}
	d.lock <- struct{}{}
	defer d.unlock()
	data, err := json.Marshal(made)
	if err != nil {
		return err
	}
	if err := d.client.setAttribute(ctx, s, volume, string(data)); err != nil {
		return err
	}
	return d.client.freezeVolume(ctx, s, volume)
}

// clearRest writes zeroes where something else is in the last cluster of a volume, from an offset on. A clone that is
// larger shows these bytes.
func (d *Disk) clearRest(ctx context.Context, volume string, offset, end int64) (err error) {
	if offset == end {
		return nil
	}
	data, err := d.openVolume(ctx, volume, end)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, data.Close()) }()
	rest := make([]byte, end-offset)
	if _, err := data.ReadAt(rest, offset); err != nil {
		return err
	}
	for _, b := range rest {
		if b != 0 {
			clear(rest)
			if _, err := data.WriteAt(rest, offset); err != nil {
				return err
			}
			return data.Sync()
		}
	}
	return nil
}

// readBack returns the hashes of what was just sealed, if it has what it must have.
func (d *Disk) readBack(ctx context.Context, made entry, wanted disk.Seal) (h piecehash.Hashes, err error) {
	data, err := d.openVolume(ctx, volumeName(roles[made.Kind], made.UID), made.Bytes)
	if err != nil {
		return piecehash.Hashes{}, err
	}
	defer func() { err = errors.Join(err, data.Close()) }()
	if len(wanted.Pieces) > 0 {
		return piecehash.Match(ctx, data, made.Bytes, wanted)
	}
	h, err = piecehash.Read(ctx, io.NewSectionReader(data, 0, made.Bytes), made.Bytes, wanted.Checksum)
	if err != nil {
		return piecehash.Hashes{}, err
	}
	return h, h.MatchChecksum(wanted.Checksum)
}

// writeSeal makes the volume with an object's checksum and the hashes of an image's pieces, which makes the object
// exist.
func (d *Disk) writeSeal(ctx context.Context, made entry, h piecehash.Hashes) error {
	v, err := d.lockView(ctx)
	if err != nil {
		return err
	}
	volume := volumeName(roleSeal, made.UID)
	hashes := h.Encode()
	err = d.client.createVolume(ctx, v.store, volume, int64(len(hashes)))
	d.unlock()
	if err != nil {
		return err
	}
	if made.Kind == disk.KindImage {
		if err := d.writeHashes(ctx, volume, hashes); err != nil {
			return fmt.Errorf("write the hashes of the pieces: %w", err)
		}
	}
	d.lock <- struct{}{}
	defer d.unlock()
	return d.writeAttribute(ctx, v, volume, seal{Format: formatVersion, Checksum: h.Checksum()})
}

func (d *Disk) writeHashes(ctx context.Context, volume string, hashes []byte) (err error) {
	data, err := d.openVolume(ctx, volume, int64(len(hashes)))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, data.Close()) }()
	if _, err := data.WriteAt(hashes, 0); err != nil {
		return err
	}
	return data.Sync()
}

// discardSealed removes what there is of an object that was not made.
func (d *Disk) discardSealed(ctx context.Context, made entry, source *lease) error {
	v, err := d.lockView(ctx)
	if err != nil {
		return err
	}
	defer d.unlock()
	if o, exists := v.objects[made.UID]; exists && o.Sealed {
		// The target has done what it did not answer.
		return errclass.Errorf(errclass.Unknown, "%q is there", source.object.Name)
	}
	delete(d.pending, made.UID)
	return d.collect(ctx, v)
}
