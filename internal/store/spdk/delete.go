package spdk

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
)

// Delete implements [disk.Disk].
func (d *Disk) Delete(ctx context.Context, name disk.Name) error {
	if err := d.deleteObject(ctx, name); err != nil {
		return fmt.Errorf("delete %q: %w", name, err)
	}
	return nil
}

func (d *Disk) deleteObject(ctx context.Context, name disk.Name) error {
	v, err := d.lockView(ctx)
	if err != nil {
		return err
	}
	defer d.unlock()
	o, err := v.findByName(name)
	if err != nil {
		return err
	}
	if err := d.checkUnused(v, o); err != nil {
		return err
	}
	switch {
	case o.Sealed:
		err = d.client.deleteVolume(ctx, v.store, volumeName(roleSeal, o.UID))
	case len(v.volumes[o.volume].Driver.Volume.Clones) > 1:
		// The target cannot delete it before bases of images are gone that are clones of it.
		err = d.client.createVolume(ctx, v.store, volumeName(roleGone, o.UID), mebibyte)
	default:
		err = d.client.deleteVolume(ctx, v.store, o.volume)
	}
	if err != nil {
		return err
	}
	after, err := d.readView(ctx)
	if err == nil {
		err = d.collect(ctx, after)
	}
	if err != nil {
		return fmt.Errorf("it is deleted, but its space is perhaps free only when the disk is opened again: %w: %w",
			errclass.Unknown, err)
	}
	return nil
}

// checkUnused returns Conflict if an object is in use, or if an object of another replica is a clone of it. The caller
// has the lock.
func (d *Disk) checkUnused(v *view, o object) error {
	if n := d.leases[o.UID]; n > 0 {
		return errclass.Errorf(errclass.Conflict, "it is in use (%d times): end that first", n)
	}
	var clones []disk.Name
	for _, other := range v.objects {
		if v.parentOf(other) == o.UID && other.replica() != o.replica() {
			clones = append(clones, other.Name)
		}
	}
	return disk.CheckClones(clones)
}

// collect deletes volumes that belong to no object: the bases of images that only one volume needs, and what crashes
// left. The caller has the lock.
func (d *Disk) collect(ctx context.Context, v *view) error {
	var errs []error
	for again := true; again; {
		again = false
		for _, name := range slices.Sorted(maps.Keys(v.volumes)) {
			if !d.isGarbage(v, name) {
				continue
			}
			if err := d.client.deleteVolume(ctx, v.store, name); err != nil {
				errs = append(errs, err)
				v.unreadable[name] = err // not again
				continue
			}
			delete(v.volumes, name)
			again = true
		}
		if again {
			volumes, err := d.client.readVolumes(ctx, v.store)
			if err != nil {
				return errors.Join(append(errs, err)...)
			}
			v.volumes = volumes
		}
	}
	return errors.Join(errs...)
}

// isGarbage reports whether a volume belongs to no object, nor to one that is being made, and can be deleted: at most
// one volume is a clone of it, to which the target gives what it has.
func (d *Disk) isGarbage(v *view, name string) bool {
	r, uid, ours := parseVolumeName(name)
	if !ours || v.unreadable[name] != nil || len(v.volumes[name].Driver.Volume.Clones) > 1 {
		return false
	}
	if _, making := d.pending[uid]; making {
		return false
	}
	_, exists := v.objects[uid]
	switch r {
	case roleBase:
		return true
	case roleSeal:
		image, snapshot := v.unreadable[volumeName(roleImage, uid)], v.unreadable[volumeName(roleSnapshot, uid)]
		return !exists && image == nil && snapshot == nil
	case roleGone:
		_, there := v.volumes[volumeName(roleSnapshot, uid)]
		return !there
	default:
		return !exists
	}
}
