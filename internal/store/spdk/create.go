package spdk

import (
	"context"
	"errors"
	"fmt"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
)

// Create implements [disk.Disk].
func (d *Disk) Create(ctx context.Context, head disk.Name, from disk.Source) error {
	if err := d.createHead(ctx, head, from); err != nil {
		return fmt.Errorf("create head %q: %w", head, err)
	}
	return nil
}

func (d *Disk) createHead(ctx context.Context, name disk.Name, from disk.Source) error {
	if err := errors.Join(name.Validate(), from.UID.Validate(), from.Volume.Validate()); err != nil {
		return err
	}
	if from.Bytes <= 0 {
		return errclass.Errorf(errclass.Invalid, "%d bytes: use more than 0", from.Bytes)
	}
	wanted := entry{
		Name: name, UID: from.UID, Kind: disk.KindHead, Volume: from.Volume, Bytes: from.Bytes, Independent: from.Independent,
	}
	v, err := d.lockView(ctx)
	if err != nil {
		return err
	}
	source, done, err := d.beginCreate(v, &wanted, from)
	if err != nil || done {
		d.unlock()
		return err
	}
	volume := volumeName(roleHead, from.UID)
	err = d.makeHead(ctx, v, volume, wanted, source)
	if err == nil && from.Independent && source != nil {
		d.unlock() // the target copies, which takes time
		err = d.decouple(ctx, volume)
		d.lock <- struct{}{}
	}
	if err == nil {
		err = d.writeEntry(ctx, v, volume, wanted)
	}
	if err != nil {
		err = joinCleanup(err, d.deleteIfThere(context.WithoutCancel(ctx), v.store, volume))
	}
	delete(d.pending, wanted.UID)
	d.unlock()
	if source != nil {
		_ = source.Close() // it has no error
	}
	return err
}

// beginCreate reserves the new head, and leases its source. Done means that the head is there. The caller has the lock.
func (d *Disk) beginCreate(v *view, wanted *entry, made disk.Source) (source *lease, done bool, err error) {
	var parent object
	if made.From != "" {
		if parent, err = v.findIntact(made.From); err != nil {
			return nil, false, fmt.Errorf("find the source: %w", err)
		}
		wanted.Origin = parent.UID
	}
	if there, ok := v.objects[wanted.UID]; ok {
		same := there.entry
		same.Format = 0
		if same == *wanted {
			return nil, true, nil
		}
	}
	switch err := d.checkFree(v, wanted.Name, wanted.UID); {
	case err != nil:
		return nil, false, err
	case made.From != "" && parent.Kind == disk.KindHead:
		return nil, false, errclass.Errorf(errclass.Invalid, "%q is a head: clone a snapshot of it", made.From)
	case made.From != "" && wanted.Bytes < parent.Bytes:
		return nil, false, errclass.Errorf(errclass.Invalid, "%d bytes are fewer than the %d of %q", wanted.Bytes,
			parent.Bytes, made.From)
	}
	if made.From != "" {
		source = d.leaseObject(parent)
	}
	d.pending[wanted.UID] = wanted.Name
	return source, false, nil
}

// makeHead makes the volume of a head, in place of what a call that failed has left. The caller has the lock.
func (d *Disk) makeHead(ctx context.Context, v *view, volume string, wanted entry, source *lease) error {
	if _, left := v.volumes[volume]; left {
		if err := d.client.deleteVolume(ctx, v.store, volume); err != nil {
			return fmt.Errorf("remove what an earlier call left: %w", err)
		}
	}
	if source == nil {
		return d.client.createVolume(ctx, v.store, volume, wanted.Bytes)
	}
	if err := d.client.cloneVolume(ctx, v.store, source.object.volume, volume); err != nil {
		return err
	}
	if roundToClusters(v.store, wanted.Bytes) == roundToClusters(v.store, source.object.Bytes) {
		return nil
	}
	return d.client.resizeVolume(ctx, v.store, volume, wanted.Bytes)
}

// decouple copies into a volume everything that it shares. Each call of the target does that for one parent.
func (d *Disk) decouple(ctx context.Context, volume string) error {
	for {
		v, err := d.lockView(ctx)
		if err != nil {
			return err
		}
		d.unlock()
		if len(v.chain(volume)) == 1 {
			return nil
		}
		if err := d.client.decoupleVolume(ctx, v.store, volume); err != nil {
			return err
		}
	}
}

// deleteIfThere deletes a volume that a call has made, or has not. The caller has the lock.
func (d *Disk) deleteIfThere(ctx context.Context, s store, name string) error {
	volumes, err := d.client.readVolumes(ctx, s)
	if err != nil {
		return err
	}
	if _, there := volumes[name]; !there {
		return nil
	}
	return d.client.deleteVolume(ctx, s, name)
}
