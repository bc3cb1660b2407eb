package csi

import (
	"context"
	"errors"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/names"
)

// DeleteVolume deletes a volume of this node.
func (c *controllerServer) DeleteVolume(
	ctx context.Context, r *csi.DeleteVolumeRequest,
) (*csi.DeleteVolumeResponse, error) {
	if r.GetVolumeId() == "" {
		return nil, errclass.Errorf(errclass.Invalid, "volume_id is empty: name the volume")
	}
	if err := c.deleteVolume(ctx, r.GetVolumeId(), ""); err != nil {
		return nil, err
	}
	return &csi.DeleteVolumeResponse{}, nil
}

// deleteVolume deletes the head of a volume, Replica and Volume, in this order, so that a call that fails can be
// repeated. The disk is that of the replica, or else the one that the caller knows, or any.
func (d *Driver) deleteVolume(ctx context.Context, handle string, known disk.UID) error {
	if names.IsSource(handle) {
		return errclass.Errorf(errclass.Conflict,
			"delete the volume %s: it is the source of an image, which Varve's controller deletes", handle)
	}
	if names.VolumeHandle(handle) != handle {
		return nil // no volume has such a handle
	}
	end, err := d.begin(handle)
	if err != nil {
		return err
	}
	defer end()
	if err := d.deleteHead(ctx, handle, known); err != nil {
		return fmt.Errorf("delete the volume %s: %w", handle, err)
	}
	meta := metav1.ObjectMeta{Name: handle, Namespace: d.options.Namespace}
	err = d.options.Client.Delete(ctx, &longhornv1.Replica{ObjectMeta: meta})
	if err == nil || apierrors.IsNotFound(err) {
		err = d.options.Client.Delete(ctx, &longhornv1.Volume{ObjectMeta: meta})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return errclass.Errorf(errclass.Transient, "delete the volume %s: delete Volume and Replica: %w", handle, err)
	}
	d.dropPending(handle)
	return d.forgetFormat(handle)
}

func (d *Driver) deleteHead(ctx context.Context, handle string, known disk.UID) error {
	replica := &longhornv1.Replica{}
	err := d.options.Client.Get(ctx, d.objectKey(handle), replica)
	switch {
	case err == nil && replica.Spec.NodeID != d.options.Node:
		return errclass.Errorf(errclass.Conflict, "it is on node %s, whose driver can delete it", replica.Spec.NodeID)
	case err == nil:
		known = disk.UID(replica.Spec.DiskID)
	case !apierrors.IsNotFound(err):
		return errclass.Errorf(errclass.Transient, "get Replica %s: %w", handle, err)
	}
	on, _, err := d.findHead(ctx, handle, known)
	if errors.Is(err, errclass.NotFound) {
		return d.deleteCloning(ctx, handle, known)
	}
	if err == nil {
		err = d.checkDetached(ctx, handle)
	}
	if err != nil {
		return err
	}
	d.markDeleting(ctx, handle)
	if err := on.Delete(ctx, names.Head(handle)); err != nil && !errors.Is(err, errclass.NotFound) {
		return err
	}
	return deleteTemporary(ctx, on, handle)
}

// deleteCloning deletes the snapshot that a clone was being made from when that was given up. It is on the clone's disk
// and looked for on all disks only if nobody knows which one that is.
func (d *Driver) deleteCloning(ctx context.Context, handle string, known disk.UID) error {
	var failed error
	for _, on := range d.options.Disks.All() {
		if known == "" || on.UUID == known {
			failed = errors.Join(failed, deleteTemporary(ctx, on, handle))
		}
	}
	return failed
}

// checkDetached returns an error of class Conflict while a volume has a device.
func (d *Driver) checkDetached(ctx context.Context, handle string) error {
	device, err := d.findDevice(ctx, handle)
	switch {
	case err == nil:
		return errclass.Errorf(errclass.Conflict, "it is attached as %s: end the pods that use it", device.Path)
	case !errors.Is(err, errclass.NotFound):
		return err
	case d.isAttached(handle):
		return errclass.Errorf(errclass.Conflict, "it is attached: end the pods that use it")
	}
	return nil
}

// ValidateVolumeCapabilities confirms what a volume can do.
func (c *controllerServer) ValidateVolumeCapabilities(
	ctx context.Context, r *csi.ValidateVolumeCapabilitiesRequest,
) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	if r.GetVolumeId() == "" || len(r.GetVolumeCapabilities()) == 0 {
		return nil, errclass.Errorf(errclass.Invalid, "volume_id or volume_capabilities is empty: name both")
	}
	if _, _, err := c.findHead(ctx, r.GetVolumeId(), disk.UID(r.GetVolumeContext()[names.ContextDisk])); err != nil {
		return nil, err
	}
	if err := checkCapabilities(r.GetVolumeCapabilities()); err != nil {
		return &csi.ValidateVolumeCapabilitiesResponse{Message: err.Error()}, nil //nolint:nilerr // the answer is no
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext: r.GetVolumeContext(), VolumeCapabilities: r.GetVolumeCapabilities(), Parameters: r.GetParameters(),
	}}, nil
}
