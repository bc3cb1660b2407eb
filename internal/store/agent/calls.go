package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/names"
	"github.com/varvebackup/varve/internal/store/peer"
)

var _ peer.Copies = (*agent)(nil)

// CreateCopy implements [peer.Copies]. The loop makes the copy, because the image's object names the disk.
func (a *agent) CreateCopy(ctx context.Context, c peer.Copy) (longhornv1.BackingImageV2CopyInfo, error) {
	if _, err := a.Disks.Find(disk.UID(c.DiskUUID)); err != nil {
		return longhornv1.BackingImageV2CopyInfo{}, err
	}
	var image longhornv1.BackingImage
	err := a.live.Get(ctx, client.ObjectKey{Namespace: a.Namespace, Name: c.Image}, &image)
	if client.IgnoreNotFound(err) != nil {
		return longhornv1.BackingImageV2CopyInfo{}, fmt.Errorf("read the BackingImage %s: %w", c.Image, err)
	}
	_, wanted := image.Spec.DiskFileSpecMap[c.DiskUUID]
	if image.Status.UUID != c.UUID || !wanted || image.DeletionTimestamp != nil {
		return longhornv1.BackingImageV2CopyInfo{}, errclass.Errorf(errclass.Conflict, "the BackingImage %s (%s) does not "+
			"have the disk %s in spec.diskFileSpecMap: add it there", c.Image, image.Status.UUID, c.DiskUUID)
	}
	a.wakeUp()
	all, _ := a.ListCopies()
	for _, info := range all {
		if info.UUID == c.UUID && info.DiskUUID == c.DiskUUID {
			return info, nil
		}
	}
	return longhornv1.BackingImageV2CopyInfo{
		Name: c.Image, UUID: c.UUID, DiskUUID: c.DiskUUID, State: longhornv1.StatePending,
	}, nil
}

// NoteDamage implements [peer.Copies]. It says it once.
func (a *agent) NoteDamage(ctx context.Context, c peer.Copy, why string) {
	d, err := a.Disks.Find(disk.UID(c.DiskUUID))
	if err == nil && isDamaged(ctx, d, c) {
		return
	}
	if err == nil {
		err = d.MarkDamaged(ctx, names.Image(c.Image, c.UUID), disk.UID(c.UUID), why)
	}
	a.Logger.Error("the copy of an image is damaged", "disk", c.DiskUUID, "image", c.Image, "uuid", c.UUID, "found", why,
		"error", err)
	a.recordEvent(ctx, c, corev1.EventTypeWarning, reasonCopyDamaged, "Check", a.describePlace(c)+" is damaged: "+why)
	if a.scrubber != nil {
		a.scrubber.WakeUp() // to repair it
	}
	a.wakeUp() // to report it
}

// isDamaged reports whether it is known already that a copy is damaged.
func isDamaged(ctx context.Context, d disk.Disk, c peer.Copy) bool {
	objects, err := d.List(ctx)
	return err == nil && slices.ContainsFunc(objects, func(o disk.Object) bool {
		return o.Name == names.Image(c.Image, c.UUID) && o.State == disk.StateDamaged
	})
}

// DeleteCopy implements [peer.Copies]. It deletes nothing that the loop would not delete.
func (a *agent) DeleteCopy(ctx context.Context, c peer.Copy) error {
	d, err := a.Disks.Find(disk.UID(c.DiskUUID))
	if err != nil {
		return err
	}
	if err := a.confirmUnwanted(ctx, c.Image, c.UUID, c.DiskUUID); err != nil {
		return err
	}
	a.wakeUp() // so that a copy that is being made ends
	objects, err := d.List(ctx)
	if err != nil {
		return err
	}
	for _, o := range objects {
		name, uuid, ok := copyOf(o)
		if !ok || uuid != c.UUID || (name != "" && name != c.Image) {
			continue
		}
		if err := d.Delete(ctx, o.Name); err != nil && !errors.Is(err, errclass.NotFound) {
			return err
		}
	}
	return nil
}
