package csi

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/container-storage-interface/spec/lib/go/csi"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/diskset"
	"github.com/varvebackup/varve/internal/store/names"
)

// origin says what a volume is made of: a snapshot or a volume, by its handle, or nothing.
type origin struct{ snapshot, volume string }

// describeOrigin returns what a volume is to be made of.
func describeOrigin(source *csi.VolumeContentSource) (origin, error) {
	o := origin{snapshot: source.GetSnapshot().GetSnapshotId(), volume: source.GetVolume().GetVolumeId()}
	if source != nil && o == (origin{}) {
		return o, errclass.Errorf(errclass.Invalid, "volume_content_source names neither a snapshot nor a volume")
	}
	return o, nil
}

// dataSource returns the origin in Longhorn's words, for spec.dataSource of the Volume.
func (o origin) dataSource() string {
	switch {
	case o.snapshot != "":
		return "snap://" + o.snapshot
	case o.volume != "":
		return "vol://" + o.volume
	}
	return ""
}

// cloneVolume makes a volume of a snapshot or of another volume, on the disk that has it, and returns the disk. A clone
// of a snapshot keeps the snapshot from being deleted. A clone of a volume stands alone.
func (d *Driver) cloneVolume(ctx context.Context, v *volume, size *csi.CapacityRange) (disk.UID, error) {
	made, on, err := d.findMade(ctx, v)
	if err != nil || made {
		return on, err
	}
	opened, from, err := d.findOrigin(ctx, v.origin)
	if err != nil {
		return "", fmt.Errorf("find what it is made of: %w", err)
	}
	if v.bytes, err = chooseCloneSize(size, from.Bytes); err != nil {
		return "", err
	}
	if v.origin.snapshot != "" {
		if v.image, _, err = findImage(ctx, opened, from); err != nil {
			return "", err
		}
	}
	if err := d.placeClone(ctx, *v, opened); err != nil {
		return "", err
	}
	head := disk.Source{UID: disk.UID(v.handle), Volume: disk.UID(v.handle), Bytes: v.bytes, From: from.Name}
	if v.origin.snapshot != "" {
		return opened.UUID, opened.Create(ctx, names.Head(v.handle), head)
	}
	temporary, uid := names.Cloning(v.handle)
	if err := d.sealVolume(ctx, opened, v.origin.volume, temporary, uid); err != nil {
		return "", fmt.Errorf("make a snapshot of the volume %s: %w", v.origin.volume, err)
	}
	head.From, head.Independent = temporary, true
	if err := opened.Create(ctx, names.Head(v.handle), head); err != nil {
		return "", err
	}
	return opened.UUID, deleteTemporary(ctx, opened, v.handle)
}

// deleteTemporary deletes the snapshot that a volume was made from, which lasts until the volume is there.
func deleteTemporary(ctx context.Context, on diskset.Disk, handle string) error {
	temporary, _ := names.Cloning(handle)
	_, err := findObject(ctx, on, temporary)
	if err == nil {
		err = on.Delete(ctx, temporary)
	}
	if err != nil && !errors.Is(err, errclass.NotFound) {
		return fmt.Errorf("delete the snapshot that the volume was made from: %w", err)
	}
	return nil
}

// findMade says whether an earlier call has made the clone, and on which disk. What it was made of may be gone.
func (d *Driver) findMade(ctx context.Context, v *volume) (bool, disk.UID, error) {
	replica, there := &longhornv1.Replica{}, &longhornv1.Volume{}
	err := d.options.Client.Get(ctx, d.objectKey(v.handle), replica)
	if err == nil {
		err = d.options.Client.Get(ctx, d.objectKey(v.handle), there)
	}
	if apierrors.IsNotFound(err) {
		return false, "", nil
	}
	if err != nil {
		return false, "", errclass.Errorf(errclass.Transient, "get Volume and Replica %s: %w", v.handle, err)
	}
	if there.Spec.DataSource != v.origin.dataSource() {
		return false, "", errclass.Errorf(errDiffers,
			"the volume is there, made of %q, and is to be made of %q: use another name", there.Spec.DataSource,
			v.origin.dataSource())
	}
	on, head, err := d.findHead(ctx, v.handle, disk.UID(replica.Spec.DiskID))
	switch {
	case errors.Is(err, errclass.NotFound):
		return false, "", nil
	case err != nil:
		return false, "", err
	}
	if v.bytes == 0 {
		v.bytes = head.Bytes
	}
	v.image = replica.Spec.BackingImage
	if err := d.checkReplica(replica, *v); err != nil {
		return false, "", err
	}
	return true, on.UUID, deleteTemporary(ctx, on, v.handle)
}

// findOrigin returns what a volume is made of, and its disk. An error is of class NotFound if it does not exist,
// Exhausted if it is on another node, and Transient while its disk is not open.
func (d *Driver) findOrigin(ctx context.Context, o origin) (diskset.Disk, disk.Object, error) {
	if o.volume != "" {
		on, err := d.findVolumeDisk(ctx, o.volume)
		if err != nil {
			return diskset.Disk{}, disk.Object{}, err
		}
		head, err := findObject(ctx, on, names.Head(o.volume))
		return on, head, err
	}
	on, there, err := d.findSnapshot(ctx, o.snapshot)
	if !errors.Is(err, errclass.Transient) {
		return on, there, err
	}
	uuid, _, _ := names.ParseSnapshotHandle(o.snapshot)
	node, nodeErr := d.findDiskNode(ctx, uuid)
	if nodeErr != nil {
		return diskset.Disk{}, disk.Object{}, nodeErr
	}
	if node != "" && node != d.options.Node {
		err = errOtherNode("snapshot "+o.snapshot, node)
	}
	return diskset.Disk{}, disk.Object{}, err
}

// findDiskNode returns the node that has reported a disk, or nothing if none has.
func (d *Driver) findDiskNode(ctx context.Context, uuid disk.UID) (string, error) {
	nodes := &longhornv1.NodeList{}
	if err := d.options.Client.List(ctx, nodes, client.InNamespace(d.options.Namespace)); err != nil {
		return "", errclass.Errorf(errclass.Transient, "list the Nodes, to find disk %s: %w", uuid, err)
	}
	for i := range nodes.Items {
		if hasReported(&nodes.Items[i], uuid) {
			return nodes.Items[i].Name, nil
		}
	}
	return "", nil
}

// hasReported says whether a node has reported a disk.
func hasReported(node *longhornv1.Node, uuid disk.UID) bool {
	for _, status := range node.Status.DiskStatus {
		if status != nil && status.DiskUUID == string(uuid) {
			return true
		}
	}
	return false
}

// findSnapshotNode returns the node that has the disk of a snapshot, by the snapshot's handle, or nothing if no node
// has reported the disk.
func (d *Driver) findSnapshotNode(ctx context.Context, handle string) (string, error) {
	uuid, _, _ := names.ParseSnapshotHandle(handle)
	if _, err := d.options.Disks.Find(uuid); err == nil {
		return d.options.Node, nil
	}
	return d.findDiskNode(ctx, uuid)
}

// findVolumeNode returns the node of a volume, or nothing if there is no such volume.
func (d *Driver) findVolumeNode(ctx context.Context, handle string) (string, error) {
	if handle == "" || names.VolumeHandle(handle) != handle {
		return "", nil
	}
	replica := &longhornv1.Replica{}
	err := d.options.Client.Get(ctx, d.objectKey(handle), replica)
	if err != nil && !apierrors.IsNotFound(err) {
		return "", fmt.Errorf("get Replica %s: %w", handle, err)
	}
	return replica.Spec.NodeID, nil
}

// chooseCloneSize returns the size of a clone: the size of its source, unless the request asks for more.
func chooseCloneSize(size *csi.CapacityRange, from int64) (int64, error) {
	limit := size.GetLimitBytes()
	switch required := size.GetRequiredBytes(); {
	case required == 0 && limit > 0 && limit < from, required > 0 && required < from:
		return 0, errclass.Errorf(errSize, "it is made of %d bytes, and %d are asked for: ask for as many or more", from,
			max(required, limit))
	case required == 0:
		return chooseSize(&csi.CapacityRange{RequiredBytes: from, LimitBytes: limit})
	}
	return chooseSize(size)
}

// findImage returns the image that an object of a disk is a clone of, over any number of snapshots, or nothing. The
// object keeps the image on the disk.
func findImage(ctx context.Context, on diskset.Disk, o disk.Object) (image, uuid string, err error) {
	objects, err := on.List(ctx)
	if err != nil {
		return "", "", fmt.Errorf("list the objects of disk %s: %w", on.Name, err)
	}
	byUID := map[disk.UID]disk.Object{}
	for _, other := range objects {
		byUID[other.UID] = other
	}
	for range objects { // even a circle of parents ends
		parent, ok := byUID[o.Parent]
		if !ok {
			return "", "", nil
		}
		if image, uuid, ok := names.IsImage(parent.Name); ok && parent.Kind == disk.KindImage {
			return image, uuid, nil
		}
		o = parent
	}
	return "", "", nil
}

// placeClone makes Volume and Replica of a clone, unless they are there, if its disk can be used.
func (d *Driver) placeClone(ctx context.Context, v volume, on diskset.Disk) error {
	_, err := d.placeVolume(ctx, v, func(node *longhornv1.Node) (disk.UID, error) {
		candidates, err := d.listCandidates(ctx, []diskset.Disk{on}, nil)
		if err != nil {
			return "", err
		}
		maps.DeleteFunc(node.Spec.Disks, func(name string, _ longhornv1.DiskSpec) bool { return name != on.Name })
		if _, err := chooseDisk(node, candidates, v); err != nil {
			return "", fmt.Errorf("a clone must be on the disk of its source: %w", err)
		}
		return on.UUID, nil
	})
	return err
}
