package csi

import (
	"context"
	"errors"
	"fmt"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/diskset"
	"github.com/varvebackup/varve/internal/store/names"
)

// readerSector is the size of a device's sectors. If the size of an image is not a multiple of it, a device on the
// image itself would lack the end.
const readerSector = 512

// makeReader makes the head of a volume from which an image is read: a clone of the image, with zeroes behind it up to
// the next sector. It keeps the image from being deleted, and nothing that is written to it is in the image.
func (d *Driver) makeReader(ctx context.Context, handle string, from map[string]string) error {
	if _, _, err := d.findHead(ctx, handle, disk.UID(from[names.ContextDisk])); !errors.Is(err, errclass.NotFound) {
		return err
	}
	on, err := d.options.Disks.Find(disk.UID(from[names.ContextDisk]))
	if err != nil {
		return err
	}
	image, uuid := names.Image(from[names.ContextImage], from[names.ContextImageUUID]), from[names.ContextImageUUID]
	o, err := findObject(ctx, on, image)
	if err != nil {
		return err
	}
	if string(o.UID) != uuid || o.State != disk.StateReady {
		return errclass.Errorf(errclass.Conflict, "the copy of the image %s on disk %s is %s: back up another copy",
			from[names.ContextImage], on.Name, o.State)
	}
	return on.Create(ctx, names.Head(handle), disk.Source{
		UID: disk.UID(handle), Volume: disk.UID(handle), From: image,
		Bytes: (o.Bytes + readerSector - 1) / readerSector * readerSector,
	})
}

// removeReader deletes the head of a volume from which an image was read. One that it cannot delete goes with a sweep:
// kubelet must not wait for a disk that is dead.
func (d *Driver) removeReader(ctx context.Context, handle string) {
	on, _, err := d.findHead(ctx, handle, "")
	if err == nil {
		err = on.Delete(ctx, names.Head(handle))
	}
	if err != nil && !errors.Is(err, errclass.NotFound) {
		d.log.Error("delete the clone from which an image was read, which is tried again", "volume", handle, "error", err)
	}
}

// sweepReaders deletes the heads of volumes from which nobody reads an image any more, such as those that a crash has
// left: the image could not be deleted.
func (d *Driver) sweepReaders(ctx context.Context) error {
	return d.forEachHead(ctx, func(_ diskset.Disk, handle string) error {
		if !names.IsReader(handle) {
			return nil
		}
		return d.sweepReader(ctx, handle)
	})
}

// sweepReader deletes the head of a volume if it is detached. It does not take the handle of a volume that is attached,
// so that a call of kubelet need not be repeated.
func (d *Driver) sweepReader(ctx context.Context, handle string) error {
	if _, err := d.loops.FindName(handle); !errors.Is(err, errclass.NotFound) {
		if detached, err := d.isDetached(ctx, handle); err != nil || !detached {
			return err
		}
	}
	end, err := d.begin(handle)
	if err != nil {
		return nil // it is being staged or unstaged
	}
	defer end()
	if _, err := d.loops.FindName(handle); errors.Is(err, errclass.NotFound) {
		d.dropLease(handle) // somebody else has detached the device
	}
	if detached, err := d.isDetached(ctx, handle); err != nil || !detached {
		return err
	}
	d.removeReader(ctx, handle)
	return nil
}

func (d *Driver) isDetached(ctx context.Context, handle string) (bool, error) {
	switch err := d.checkDetached(ctx, handle); {
	case errors.Is(err, errclass.Conflict):
		return false, nil // a pod reads it
	case err != nil:
		return false, fmt.Errorf("find out whether the volume %s is attached: %w", handle, err)
	}
	return true, nil
}
