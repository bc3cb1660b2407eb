package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/handover"
	"github.com/varvebackup/varve/internal/store/names"
	"github.com/varvebackup/varve/internal/store/peer"
)

// origin is what the first copy of an image is made of if its disk has that already: another image, or a volume.
type origin struct {
	// name is the image's or the volume's.
	name string
	// uuid is the status.uuid of the image that is cloned, or empty if that image does not exist.
	uuid string
	// object is the image, or the volume's head. It is nil if the disk does not have it.
	object *disk.Object
	// users is how many leases of a volume's head are open.
	users int
}

// findOrigin finds out what a first copy that needs no source pod is made of.
func findOrigin(
	ctx context.Context, s *diskState, image *longhornv1.BackingImage, images []longhornv1.BackingImage,
) (o origin, err error) {
	var wanted disk.Name
	switch image.Spec.SourceType {
	case longhornv1.SourceClone:
		o.name = string(image.Spec.SourceParameters[longhornv1.ParameterBackingImage])
		for i := range images {
			if images[i].Name == o.name {
				o.uuid = images[i].Status.UUID
			}
		}
		wanted = names.Image(o.name, o.uuid)
	case longhornv1.SourceExport:
		o.name = string(image.Spec.SourceParameters[longhornv1.ParameterVolumeName])
		if names.IsOfImage(o.name) {
			return o, nil // an image is made in it or read from it: it is no volume
		}
		wanted = names.Head(o.name)
	default:
		return o, nil
	}
	for i := range s.objects {
		if s.objects[i].Name == wanted {
			o.object = &s.objects[i]
		}
	}
	if o.object != nil && o.object.Kind == disk.KindHead {
		o.users, err = s.open.Users(ctx, wanted)
	}
	return o, err
}

// decideClone is decideFirst for a clone of another image. The head that it is sealed from keeps the other image on the
// disk meanwhile. Its parent says which image of that name was cloned.
func decideClone(v view) decision {
	from := v.origin
	var d decision
	switch copied := from.object; {
	case v.source == nil && from.uuid == "":
		return failed(fmt.Sprintf("the image %s, which is to be cloned, does not exist", from.name))
	case v.source == nil && (copied == nil || string(copied.UID) != from.uuid || copied.State != disk.StateReady):
		return failed(fmt.Sprintf("the disk has no ready copy of the image %s (%s), which is to be cloned", from.name,
			from.uuid))
	case v.source == nil:
		return inProgress(actionCloneImage, 0, v.state.lastError)
	case v.source.State != disk.StateWritable:
		d = failed("the clone is damaged")
	case string(v.source.Parent) != from.uuid:
		d = failed(fmt.Sprintf("the image %s was deleted or made again while it was cloned: its status.uuid was %q, and "+
			"is %q", from.name, v.source.Parent, from.uuid))
	default:
		return inProgress(actionSealClone, 99, v.state.lastError)
	}
	d.action = actionDeleteSource
	return d
}

// decideExport is decideFirst for an image of what a volume has.
func decideExport(v view) decision {
	switch head := v.origin.object; {
	case head == nil:
		return failed(fmt.Sprintf("the disk does not have the volume %s: it was deleted, or never was there", v.origin.name))
	case head.State != disk.StateWritable:
		return failed(fmt.Sprintf("the data of the volume %s is damaged: restore it from a backup", v.origin.name))
	case head.Bytes > handover.MaxImageBytes:
		return failed(fmt.Sprintf("the volume %s has %d bytes, and an image has at most %d: back up the volume instead",
			v.origin.name, head.Bytes, int64(handover.MaxImageBytes)))
	case v.origin.users > 0:
		return inProgress(actionNone, 0, fmt.Sprintf("the volume %s is attached: stop what uses it", v.origin.name))
	}
	return inProgress(actionExport, 99, v.state.lastError)
}

// cloneImage makes the head of an image that is a clone of another one.
func cloneImage(ctx context.Context, d disk.Disk, uuid string, from disk.Object) error {
	return d.Create(ctx, names.SourceHead(uuid), disk.Source{
		UID: disk.UID(names.SourceHandle(uuid)), Volume: disk.UID(uuid), From: from.Name, Bytes: from.Bytes,
	})
}

// sealClone makes an image of a clone, and deletes its head. The clone must have what was sealed of the other image.
func (a *agent) sealClone(ctx context.Context, d disk.Disk, image *longhornv1.BackingImage, v view, j *job) error {
	seal := disk.Seal{Bytes: v.source.Bytes, Checksum: image.Spec.Checksum}
	if o := v.origin.object; o != nil && o.UID == v.source.Parent {
		seal.Checksum = cmp.Or(seal.Checksum, o.Checksum)
	}
	err := a.sealSource(ctx, d, image, seal, j)
	if wrong := (*disk.ChecksumError)(nil); image.Spec.Checksum == "" && errors.As(err, &wrong) {
		from := peer.Copy{Image: v.origin.name, UUID: string(v.source.Parent), DiskUUID: v.diskUUID}
		a.NoteDamage(context.WithoutCancel(ctx), from, fmt.Sprintf("its %s is %s", wrong.Algorithm, wrong.Found))
		return errclass.Errorf(errclass.Corrupt, "the disk's copy of the image %s is not what was sealed: its %s is "+
			"%.16s…, and it was %.16s…: remove the disk from spec.diskFileSpecMap of that image, so that it is made again",
			v.origin.name, wrong.Algorithm, wrong.Found, wrong.Wanted)
	}
	return err
}

// exportVolume makes an image of what a volume has, if nobody has attached it. The volume stays as it is.
func (a *agent) exportVolume(
	ctx context.Context, d disk.Disk, image *longhornv1.BackingImage, head disk.Object, j *job,
) error {
	return a.sealHead(ctx, d, head.Name, image, disk.Seal{
		Bytes: head.Bytes, Checksum: image.Spec.Checksum, Exclusive: true,
	}, j)
}
