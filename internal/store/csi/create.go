package csi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/diskset"
	"github.com/varvebackup/varve/internal/store/names"
)

// controllerServer makes and deletes volumes (CSI specification, "Controller Service RPC").
type controllerServer struct {
	csi.UnimplementedControllerServer
	*Driver
}

func (c *controllerServer) ControllerGetCapabilities(
	context.Context, *csi.ControllerGetCapabilitiesRequest,
) (*csi.ControllerGetCapabilitiesResponse, error) {
	resp := &csi.ControllerGetCapabilitiesResponse{}
	for _, t := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT, csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS,
		csi.ControllerServiceCapability_RPC_CLONE_VOLUME,
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
	} {
		resp.Capabilities = append(resp.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: t}},
		})
	}
	return resp, nil
}

// CreateVolume makes a volume on a disk of this node: blank, or a clone of an image, a snapshot or another volume.
func (c *controllerServer) CreateVolume(
	ctx context.Context, r *csi.CreateVolumeRequest,
) (*csi.CreateVolumeResponse, error) {
	v, err := describeVolume(r)
	if err != nil {
		return nil, fmt.Errorf("create the volume %s: %w", r.GetName(), err)
	}
	if err := checkTopology(r.GetAccessibilityRequirements(), c.options.Node); err != nil {
		return nil, fmt.Errorf("create the volume %s: %w", v.handle, err)
	}
	end, err := c.begin(v.handle)
	if err != nil {
		return nil, err
	}
	defer end()
	var on disk.UID
	if v.origin == (origin{}) {
		on, err = c.createVolume(ctx, v)
	} else {
		on, err = c.cloneVolume(ctx, &v, r.GetCapacityRange())
	}
	c.notePending(v, err)
	if err != nil {
		return nil, fmt.Errorf("create the volume %s: %w", v.handle, err)
	}
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{
		VolumeId: v.handle, CapacityBytes: v.bytes, VolumeContext: map[string]string{names.ContextDisk: string(on)},
		AccessibleTopology: []*csi.Topology{{Segments: map[string]string{names.TopologyNode: c.options.Node}}},
		ContentSource:      r.GetVolumeContentSource(),
	}}, nil
}

// checkTopology returns an error of class Exhausted, at which the caller tries another node, if the volume cannot be
// here.
func checkTopology(r *csi.TopologyRequirement, node string) error {
	if len(r.GetRequisite()) == 0 {
		return nil
	}
	for _, t := range r.GetRequisite() {
		if there, ok := t.GetSegments()[names.TopologyNode]; !ok || there == node {
			return nil
		}
	}
	return errclass.Errorf(errclass.Exhausted, "it is to be on another node than %s: ask the driver there", node)
}

// createVolume makes a volume, and returns its disk.
func (d *Driver) createVolume(ctx context.Context, v volume) (disk.UID, error) {
	image, err := d.getImage(ctx, v)
	if err != nil {
		return "", err
	}
	v.base = image
	replica, err := d.placeVolume(ctx, v, func(node *longhornv1.Node) (disk.UID, error) {
		candidates, err := d.listCandidates(ctx, d.options.Disks.All(), image)
		if err != nil {
			return "", err
		}
		return chooseDisk(node, candidates, v)
	})
	if err != nil {
		return "", err
	}
	on, err := d.options.Disks.Find(disk.UID(replica.Spec.DiskID))
	if err != nil {
		return "", errclass.Errorf(errclass.Transient, "%v: look at status.diskStatus of Node %s", err, d.options.Node)
	}
	source := disk.Source{UID: disk.UID(v.handle), Volume: disk.UID(v.handle), Bytes: v.bytes}
	if image != nil {
		if err := d.checkCopy(ctx, on, image); err != nil {
			return "", err
		}
		source.From = names.Image(v.image, image.Status.UUID)
	}
	return on.UUID, on.Create(ctx, names.Head(v.handle), source)
}

// getImage returns the image of a volume, or nil if it has none.
func (d *Driver) getImage(ctx context.Context, v volume) (*longhornv1.BackingImage, error) {
	if v.image == "" {
		return nil, nil //nolint:nilnil // a volume without an image is as good as one with
	}
	image := &longhornv1.BackingImage{}
	err := d.options.Client.Get(ctx, d.objectKey(v.image), image)
	switch {
	case apierrors.IsNotFound(err):
		return nil, errclass.Errorf(errclass.NotFound,
			"BackingImage %s/%s, which the parameter %s of the StorageClass names, does not exist: create it, or use another "+
				"class (a restore needs no image and works with any class)",
			d.options.Namespace, v.image, parameterImage)
	case err != nil:
		return nil, errclass.Errorf(errclass.Transient, "get BackingImage %s/%s: %w", d.options.Namespace, v.image, err)
	case !image.DeletionTimestamp.IsZero():
		return nil, errclass.Errorf(errclass.Conflict, "BackingImage %s/%s is being deleted: use another one",
			d.options.Namespace, v.image)
	case image.Status.Size > v.bytes:
		return nil, errclass.Errorf(errImageLarger, "the volume has %d bytes, and BackingImage %s has %d: ask for as many "+
			"or more", v.bytes, v.image, image.Status.Size)
	}
	return image, nil
}

// placeVolume returns the replica of a volume. If Volume and Replica are missing, it makes them, on the disk that
// choose returns. From then on the replica's disk is the volume's.
func (d *Driver) placeVolume(
	ctx context.Context, v volume, choose func(*longhornv1.Node) (disk.UID, error),
) (*longhornv1.Replica, error) {
	replica := &longhornv1.Replica{}
	err := d.options.Client.Get(ctx, d.objectKey(v.handle), replica)
	if err == nil {
		return replica, d.checkReplica(replica, v)
	}
	if !apierrors.IsNotFound(err) {
		return nil, errclass.Errorf(errclass.Transient, "get Replica %s: %w", v.handle, err)
	}
	node := &longhornv1.Node{}
	if err := d.options.Client.Get(ctx, d.objectKey(d.options.Node), node); err != nil {
		return nil, errclass.Errorf(errclass.Transient, "get Node %s of longhorn.io, which the node's store makes: %w",
			d.options.Node, err)
	}
	on, err := choose(node)
	if err != nil {
		return nil, err
	}
	return d.writeObjects(ctx, v, on)
}

// checkReplica returns an error if a replica is not that of the volume, or is on another node.
func (d *Driver) checkReplica(r *longhornv1.Replica, v volume) error {
	switch {
	case r.Spec.VolumeSize != v.bytes || r.Spec.BackingImage != v.image:
		return errclass.Errorf(errDiffers,
			"the volume is there with %d bytes of image %q, and %d of %q are asked for: use another name",
			r.Spec.VolumeSize, r.Spec.BackingImage, v.bytes, v.image)
	case r.Spec.NodeID != d.options.Node:
		return errclass.Errorf(errclass.Conflict, "the volume is on node %s: use it there, or delete the claim",
			r.Spec.NodeID)
	case !r.DeletionTimestamp.IsZero():
		return errclass.Errorf(errclass.Transient, "Replica %s of an earlier volume is still being deleted", r.Name)
	}
	return nil
}

// listCandidates measures disks that are open. It leaves out those that cannot be measured.
func (d *Driver) listCandidates(
	ctx context.Context, disks []diskset.Disk, image *longhornv1.BackingImage,
) ([]candidate, error) {
	var all []candidate
	for _, opened := range disks {
		usage, err := opened.Usage(ctx)
		if err != nil {
			d.log.Error("measure a disk, which is left out", "disk", opened.Name, "error", err)
			continue
		}
		c := candidate{name: opened.Name, uuid: opened.UUID, available: usage.Available}
		if image != nil {
			err := d.checkCopy(ctx, opened, image)
			if c.hasImage = err == nil; err != nil && !errors.Is(err, errclass.Transient) {
				return nil, err
			}
			if !c.hasImage {
				_, listed := image.Spec.DiskFileSpecMap[string(opened.UUID)]
				c.missing, c.needsCopy = missingBytes(image, opened.UUID), !listed
			}
		}
		all = append(all, c)
	}
	return all, nil
}

// writeObjects makes Volume and Replica. If the replica is there, which a cache may not have shown, the error is of
// class Transient: the next call sees it.
func (d *Driver) writeObjects(ctx context.Context, v volume, on disk.UID) (*longhornv1.Replica, error) {
	meta := metav1.ObjectMeta{Name: v.handle, Namespace: d.options.Namespace}
	made := &longhornv1.Volume{ObjectMeta: meta, Spec: longhornv1.VolumeSpec{
		Size: v.bytes, DataEngine: longhornv1.DataEngineV2, BackingImage: v.image, NumberOfReplicas: 1,
		DiskSelector: v.diskSelector, NodeSelector: v.nodeSelector, DataSource: v.origin.dataSource(),
	}}
	if v.claim.PVCName != "" {
		made.Annotations = map[string]string{names.ClaimAnnotation: v.claim.Namespace + "/" + v.claim.PVCName}
	}
	if err := d.options.Client.Create(ctx, made); err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, errclass.Errorf(errclass.Transient, "create Volume %s: %w", v.handle, err)
	}
	replica := &longhornv1.Replica{ObjectMeta: meta, Spec: longhornv1.ReplicaSpec{
		VolumeName: v.handle, VolumeSize: v.bytes, DataEngine: longhornv1.DataEngineV2, NodeID: d.options.Node,
		DiskID:       string(on),
		BackingImage: v.image,
	}}
	if err := d.options.Client.Create(ctx, replica); err != nil {
		return nil, errclass.Errorf(errclass.Transient, "create Replica %s: %w", v.handle, err)
	}
	return replica, nil
}

// checkCopy returns an error of class Transient, which says how far the copy is, if a disk has no ready copy of an
// image.
func (d *Driver) checkCopy(ctx context.Context, on diskset.Disk, image *longhornv1.BackingImage) error {
	if image == nil {
		return nil
	}
	objects, err := on.List(ctx)
	if err != nil {
		return fmt.Errorf("list the objects of disk %s: %w", on.Name, err)
	}
	ready := image.Status.UUID != "" && slices.ContainsFunc(objects, func(o disk.Object) bool {
		return o.Name == names.Image(image.Name, image.Status.UUID) && o.UID == disk.UID(image.Status.UUID) &&
			o.State == disk.StateReady
	})
	if ready {
		return nil
	}
	return errclass.Errorf(errclass.Transient, "disk %s of node %s has no ready copy of BackingImage %s: %s", on.Name,
		d.options.Node,
		image.Name, describeCopy(image, on.UUID))
}

// describeCopy says how far the copy of an image on a disk is.
func describeCopy(image *longhornv1.BackingImage, on disk.UID) string {
	copied := image.Status.DiskFileStatusMap[string(on)]
	if copied == nil {
		first := cmp.Or(string(image.Status.V2FirstCopyStatus), "not yet begun")
		if image.Status.V2FirstCopyStatus == longhornv1.StateReady {
			return "Varve's controller will have one made there"
		}
		return fmt.Sprintf("the first copy of the image is %s, and copies to further disks follow it", first)
	}
	text := fmt.Sprintf("the copy is %s (%d %%)", copied.State, copied.Progress)
	if copied.Message != "" {
		text += ": " + copied.Message
	}
	return text
}

// objectKey returns the key of an object of the store.
func (d *Driver) objectKey(name string) client.ObjectKey {
	return client.ObjectKey{Namespace: d.options.Namespace, Name: name}
}
