package csi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/diskset"
	"github.com/varvebackup/varve/internal/store/loop"
	"github.com/varvebackup/varve/internal/store/names"
)

// nodeServer stages and publishes volumes (CSI specification, "Node Service RPC").
type nodeServer struct {
	csi.UnimplementedNodeServer
	*Driver
}

// NodeGetInfo names the node. As many volumes as kubelet wants can be attached.
func (n *nodeServer) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{
		NodeId:             n.options.Node,
		AccessibleTopology: &csi.Topology{Segments: map[string]string{names.TopologyNode: n.options.Node}},
	}, nil
}

func (n *nodeServer) NodeGetCapabilities(
	context.Context, *csi.NodeGetCapabilitiesRequest,
) (*csi.NodeGetCapabilitiesResponse, error) {
	resp := &csi.NodeGetCapabilitiesResponse{}
	for _, t := range []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME, csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	} {
		resp.Capabilities = append(resp.Capabilities, &csi.NodeServiceCapability{
			Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: t}},
		})
	}
	return resp, nil
}

// NodeStageVolume attaches a device to the volume's head and, for a Filesystem volume, mounts it.
func (n *nodeServer) NodeStageVolume(
	ctx context.Context, r *csi.NodeStageVolumeRequest,
) (*csi.NodeStageVolumeResponse, error) {
	handle := r.GetVolumeId()
	if err := checkRequest(handle, r.GetStagingTargetPath(), r.GetVolumeCapability()); err != nil {
		return nil, err
	}
	if names.IsSource(handle) && r.GetVolumeCapability().GetBlock() == nil {
		return nil, errclass.Errorf(errclass.Invalid,
			"stage the volume %s: an image is made in it, so set volumeMode to Block", handle)
	}
	if names.IsReader(handle) && r.GetVolumeCapability().GetBlock() == nil {
		return nil, errclass.Errorf(errclass.Invalid,
			"stage the volume %s: an image is read from it, so set volumeMode to Block", handle)
	}
	end, err := n.begin(handle)
	if err != nil {
		return nil, err
	}
	defer end()
	if err := n.stageVolume(ctx, r); err != nil {
		return nil, fmt.Errorf("stage the volume %s: %w", handle, err)
	}
	n.changed.Add(handle)
	return &csi.NodeStageVolumeResponse{}, nil
}

func (n *nodeServer) stageVolume(ctx context.Context, r *csi.NodeStageVolumeRequest) error {
	if names.IsReader(r.GetVolumeId()) {
		if err := n.makeReader(ctx, r.GetVolumeId(), r.GetVolumeContext()); err != nil {
			return err
		}
	}
	on, head, err := n.findHead(ctx, r.GetVolumeId(), disk.UID(r.GetVolumeContext()[names.ContextDisk]))
	if err != nil {
		return err
	}
	block := r.GetVolumeCapability().GetBlock() != nil
	if block { // what is written to it is nobody's unfinished file system
		if err := n.forgetFormat(r.GetVolumeId()); err != nil {
			return err
		}
	}
	device, err := n.attachHead(ctx, r.GetVolumeId(), on, chooseSector(block))
	if err != nil || block {
		return err
	}
	target := r.GetStagingTargetPath()
	there, err := findMount(target)
	if err != nil {
		return err
	}
	if there != nil {
		return checkMount(there, device.Path)
	}
	if err := n.formatBlank(ctx, on, head, device.Path); err != nil {
		return err
	}
	if err := os.MkdirAll(target, 0o750); err != nil {
		return err
	}
	if err := mountVolume(r, device.Path); err != nil {
		return err
	}
	return n.growMounted(ctx, r, device.Path)
}

// mountVolume mounts the file system of a volume where kubelet wants it staged.
func mountVolume(r *csi.NodeStageVolumeRequest, device string) error {
	target := r.GetStagingTargetPath()
	flags, data := mountOptions(r.GetVolumeCapability().GetMount().GetMountFlags())
	if err := unix.Mount(device, target, fileSystem, flags, data); err != nil {
		return fmt.Errorf("mount %s at %s as %s, options %q: %w: if it never had a file system, "+
			"make another claim, with volumeMode Block if that is what it is for", device, target, fileSystem, data, err)
	}
	return nil
}

// NodeUnstageVolume unmounts the volume, and detaches its device. It needs no open disk.
func (n *nodeServer) NodeUnstageVolume(
	ctx context.Context, r *csi.NodeUnstageVolumeRequest,
) (*csi.NodeUnstageVolumeResponse, error) {
	handle := r.GetVolumeId()
	if err := checkPath(handle, r.GetStagingTargetPath()); err != nil {
		return nil, err
	}
	end, err := n.begin(handle)
	if err != nil {
		return nil, err
	}
	defer end()
	err = unmountAll(r.GetStagingTargetPath())
	if err == nil {
		err = n.detachHead(ctx, handle)
	}
	if err != nil {
		return nil, fmt.Errorf("unstage the volume %s: %w", handle, err)
	}
	if names.IsReader(handle) {
		n.removeReader(ctx, handle)
	}
	n.changed.Add(handle)
	return &csi.NodeUnstageVolumeResponse{}, nil
}

// chooseSector returns the size of a device's sectors. A machine or a copy reads and writes a Block volume, and can do
// that in any unit. What a Filesystem volume has may have been made with sectors of 512 bytes, for example in an image.
func chooseSector(block bool) int {
	if block {
		return loop.BlockSector
	}
	return loop.SmallSector
}

// attachHead leases the head of a volume, and attaches a device to it.
func (d *Driver) attachHead(ctx context.Context, handle string, on diskset.Disk, sectorBytes int) (
	loop.Device, error,
) {
	lease, err := on.Open(ctx, names.Head(handle))
	if err != nil {
		return loop.Device{}, err
	}
	device, err := d.loops.Attach(ctx, lease.Path(), handle, sectorBytes)
	if err != nil {
		return loop.Device{}, errors.Join(err, lease.Close())
	}
	d.keepLease(handle, lease)
	return device, nil
}

// detachHead detaches the device of a volume, and ends the lease of its head when the kernel has detached it.
func (d *Driver) detachHead(ctx context.Context, handle string) error {
	ctx, cancel := context.WithTimeout(ctx, detachTimeout)
	defer cancel()
	device, err := d.findDevice(ctx, handle)
	if err == nil {
		err = d.loops.Detach(ctx, device)
	}
	if err != nil && !errors.Is(err, errclass.NotFound) {
		return err
	}
	d.dropLease(handle)
	return nil
}

// NodePublishVolume binds the staged file system, or the device, to the path that kubelet chose for a pod.
func (n *nodeServer) NodePublishVolume(
	ctx context.Context, r *csi.NodePublishVolumeRequest,
) (*csi.NodePublishVolumeResponse, error) {
	handle, target := r.GetVolumeId(), r.GetTargetPath()
	if err := checkRequest(handle, target, r.GetVolumeCapability()); err != nil {
		return nil, err
	}
	if r.GetStagingTargetPath() == "" {
		return nil, errclass.Errorf(errclass.Conflict,
			"publish the volume %s: staging_target_path is empty: stage the volume first", handle)
	}
	end, err := n.begin(handle)
	if err != nil {
		return nil, err
	}
	defer end()
	publish := n.publishDirectory
	if r.GetVolumeCapability().GetBlock() != nil {
		publish = n.publishDevice
	}
	if err := publish(ctx, r); err != nil {
		return nil, fmt.Errorf("publish the volume %s at %s: %w", handle, target, err)
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

// publishDevice binds the device to a file. Kubelet gives a container a device that can only be read if the claim is
// mounted read-only: a mount cannot.
func (n *nodeServer) publishDevice(ctx context.Context, r *csi.NodePublishVolumeRequest) error {
	device, err := n.findStaged(ctx, r.GetVolumeId())
	if err != nil {
		return err
	}
	target := r.GetTargetPath()
	if err := os.MkdirAll(filepath.Dir(target), 0o750); err != nil {
		return err
	}
	there, err := findMount(target)
	if err != nil {
		return err
	}
	if there != nil {
		return checkBoundDevice(target, device.Path)
	}
	f, err := os.OpenFile(target, os.O_CREATE|os.O_RDONLY, 0o660) // the device is bound to it
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		return err
	}
	return bindMount(device.Path, target)
}

// publishDirectory binds the staged file system to a directory.
func (n *nodeServer) publishDirectory(ctx context.Context, r *csi.NodePublishVolumeRequest) error {
	device, err := n.findStaged(ctx, r.GetVolumeId())
	if err != nil {
		return err
	}
	staged, err := findMount(r.GetStagingTargetPath())
	if err == nil && staged == nil {
		err = errclass.Errorf(errclass.Conflict, "nothing is mounted at %s: stage the volume first", r.GetStagingTargetPath())
	}
	if err == nil {
		err = checkMount(staged, device.Path)
	}
	if err == nil {
		err = os.MkdirAll(r.GetTargetPath(), 0o750)
	}
	if err != nil {
		return err
	}
	there, err := findMount(r.GetTargetPath())
	switch {
	case err != nil:
		return err
	case there != nil:
		err = checkMount(there, device.Path)
	default:
		err = bindMount(r.GetStagingTargetPath(), r.GetTargetPath())
	}
	if err != nil || !r.GetReadonly() {
		return err
	}
	return makeReadOnly(r.GetTargetPath())
}

// findStaged returns the device of a volume. An error is of class NotFound if the node does not have the volume, and
// Conflict if it is not staged.
func (d *Driver) findStaged(ctx context.Context, handle string) (loop.Device, error) {
	device, err := d.findDevice(ctx, handle)
	if !errors.Is(err, errclass.NotFound) {
		return device, err
	}
	if _, _, err := d.findHead(ctx, handle, ""); err != nil {
		return loop.Device{}, err
	}
	return loop.Device{}, errclass.Errorf(errclass.Conflict, "it has no device: stage the volume first")
}

// NodeUnpublishVolume removes what NodePublishVolume made.
func (n *nodeServer) NodeUnpublishVolume(
	_ context.Context, r *csi.NodeUnpublishVolumeRequest,
) (*csi.NodeUnpublishVolumeResponse, error) {
	handle, target := r.GetVolumeId(), r.GetTargetPath()
	if err := checkPath(handle, target); err != nil {
		return nil, err
	}
	end, err := n.begin(handle)
	if err != nil {
		return nil, err
	}
	defer end()
	err = unmountAll(target)
	if err == nil {
		err = skipMissing(os.Remove(target))
	}
	if err != nil {
		return nil, fmt.Errorf("unpublish the volume %s at %s: %w", handle, target, err)
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

// NodeGetVolumeStats reports bytes and inodes of a file system, or the size of a device in bytes.
func (n *nodeServer) NodeGetVolumeStats(
	ctx context.Context, r *csi.NodeGetVolumeStatsRequest,
) (*csi.NodeGetVolumeStatsResponse, error) {
	handle, path := r.GetVolumeId(), r.GetVolumePath()
	if err := checkPath(handle, path); err != nil {
		return nil, err
	}
	usage, err := n.measureVolume(ctx, handle, path)
	if err != nil {
		return nil, fmt.Errorf("measure the volume %s at %s: %w", handle, path, err)
	}
	return &csi.NodeGetVolumeStatsResponse{Usage: usage}, nil
}

func (n *nodeServer) measureVolume(ctx context.Context, handle, path string) ([]*csi.VolumeUsage, error) {
	_, head, err := n.findHead(ctx, handle, "")
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errclass.Errorf(errclass.NotFound, "%w", err)
	}
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []*csi.VolumeUsage{{Unit: csi.VolumeUsage_BYTES, Total: head.Bytes}}, nil
	}
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return nil, err
	}
	return []*csi.VolumeUsage{
		{
			Unit: csi.VolumeUsage_BYTES, Total: int64(st.Blocks) * st.Bsize, Available: int64(st.Bavail) * st.Bsize,
			Used: int64(st.Blocks-st.Bfree) * st.Bsize,
		},
		{Unit: csi.VolumeUsage_INODES, Total: int64(st.Files), Available: int64(st.Ffree), Used: int64(st.Files - st.Ffree)},
	}, nil
}

// checkRequest returns an error of class Invalid if a request to stage or publish a volume lacks something.
func checkRequest(handle, path string, capability *csi.VolumeCapability) error {
	if err := checkPath(handle, path); err != nil {
		return err
	}
	if capability == nil {
		return errclass.Errorf(errclass.Invalid, "the volume %s: volume_capability is missing: say how it is to be used",
			handle)
	}
	return checkCapabilities([]*csi.VolumeCapability{capability})
}

func checkPath(handle, path string) error {
	if handle == "" || path == "" {
		return errclass.Errorf(errclass.Invalid, "the volume is %q, and its path %q: name both", handle, path)
	}
	return nil
}
