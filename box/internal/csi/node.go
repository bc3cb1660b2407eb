package csi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// nodeServer stages and publishes volumes (CSI specification, "Node Service RPC").
type nodeServer struct {
	csi.UnimplementedNodeServer
	name  string
	store store
}

func (n *nodeServer) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: n.name}, nil
}

func (n *nodeServer) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	resp := &csi.NodeGetCapabilitiesResponse{}
	for _, t := range []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME, csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
	} {
		resp.Capabilities = append(resp.Capabilities, &csi.NodeServiceCapability{
			Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: t}},
		})
	}
	return resp, nil
}

// NodeStageVolume attaches the volume's file and, for a Filesystem volume, mounts it at the staging path.
func (n *nodeServer) NodeStageVolume(_ context.Context, r *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	if err := checkRequest(r.GetVolumeId(), r.GetStagingTargetPath(), r.GetVolumeCapability()); err != nil {
		return nil, err
	}
	dev, readOnly, err := n.store.attachVolume(r.GetVolumeId())
	if err != nil {
		return nil, grpcError("stage", r.GetVolumeId(), err)
	}
	if readOnly && !isReader(r.GetVolumeCapability().GetAccessMode().GetMode()) {
		return nil, status.Errorf(codes.FailedPrecondition, "stage the volume %s: it is read-only, and the access mode says that it is written", r.GetVolumeId())
	}
	if r.GetVolumeCapability().GetBlock() == nil {
		flags, options := uintptr(0), "discard"
		if readOnly {
			flags, options = unix.MS_RDONLY, ""
		}
		if err := mountOnce(dev.Path, r.GetStagingTargetPath(), "ext4", flags, options); err != nil {
			return nil, grpcError("stage", r.GetVolumeId(), err)
		}
	}
	return &csi.NodeStageVolumeResponse{}, nil
}

func (n *nodeServer) NodeUnstageVolume(_ context.Context, r *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	if err := checkPath(r.GetVolumeId(), r.GetStagingTargetPath()); err != nil {
		return nil, err
	}
	err := unmountAll(r.GetStagingTargetPath())
	if err == nil {
		err = skipMissing(n.store.detachVolume(r.GetVolumeId()))
	}
	if err != nil {
		return nil, grpcError("unstage", r.GetVolumeId(), err)
	}
	return &csi.NodeUnstageVolumeResponse{}, nil
}

// NodePublishVolume bind-mounts the staged file system, or the device, at the path that kubelet chose for the pod.
func (n *nodeServer) NodePublishVolume(_ context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	if err := checkRequest(r.GetVolumeId(), r.GetTargetPath(), r.GetVolumeCapability()); err != nil {
		return nil, err
	}
	if err := n.publishVolume(r); err != nil {
		return nil, grpcError("publish", r.GetVolumeId(), err)
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

func (n *nodeServer) publishVolume(r *csi.NodePublishVolumeRequest) error {
	target := r.GetTargetPath()
	if r.GetVolumeCapability().GetBlock() != nil {
		dev, _, err := n.store.attachVolume(r.GetVolumeId())
		if err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Dir(target), 0o750); err != nil {
			return err
		}
		f, err := os.OpenFile(target, os.O_CREATE|os.O_RDONLY, 0o660) // a file to bind the device on
		if err != nil {
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
		return mountOnce(dev.Path, target, "", unix.MS_BIND, "")
	}
	if err := mountOnce(r.GetStagingTargetPath(), target, "", unix.MS_BIND, ""); err != nil || !r.GetReadonly() {
		return err
	}
	if err := unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("make %s read-only: %w", target, err)
	}
	return nil
}

func (n *nodeServer) NodeUnpublishVolume(_ context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	if err := checkPath(r.GetVolumeId(), r.GetTargetPath()); err != nil {
		return nil, err
	}
	err := unmountAll(r.GetTargetPath())
	if err == nil {
		err = skipMissing(os.Remove(r.GetTargetPath()))
	}
	if err != nil {
		return nil, grpcError("unpublish", r.GetVolumeId(), err)
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

// NodeGetVolumeStats reports bytes and inodes of a file system, or the size of a device in bytes.
func (n *nodeServer) NodeGetVolumeStats(_ context.Context, r *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	if err := checkPath(r.GetVolumeId(), r.GetVolumePath()); err != nil {
		return nil, err
	}
	info, err := os.Stat(r.GetVolumePath())
	if err != nil {
		return nil, grpcError("measure", r.GetVolumeId(), err)
	}
	if !info.IsDir() {
		file, _, err := n.store.attachableFile(r.GetVolumeId())
		if err == nil {
			info, err = os.Stat(file)
		}
		if err != nil {
			return nil, grpcError("measure", r.GetVolumeId(), err)
		}
		return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{{Total: info.Size(), Unit: csi.VolumeUsage_BYTES}}}, nil
	}
	var st unix.Statfs_t
	if err := unix.Statfs(r.GetVolumePath(), &st); err != nil {
		return nil, grpcError("measure", r.GetVolumeId(), err)
	}
	block := st.Bsize
	return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{
		{
			Unit: csi.VolumeUsage_BYTES, Total: int64(st.Blocks) * block, Available: int64(st.Bavail) * block,
			Used: int64(st.Blocks-st.Bfree) * block,
		},
		{Unit: csi.VolumeUsage_INODES, Total: int64(st.Files), Available: int64(st.Ffree), Used: int64(st.Files - st.Ffree)},
	}}, nil
}

// mountOnce mounts source at target unless something is already mounted there, by an earlier, interrupted call.
func mountOnce(source, target, kind string, flags uintptr, data string) error {
	if flags&unix.MS_BIND == 0 || isDir(source) {
		if err := os.MkdirAll(target, 0o750); err != nil {
			return err
		}
	}
	mounted, err := mountinfo.Mounted(target)
	if err != nil || mounted {
		return err
	}
	if err := unix.Mount(source, target, kind, flags, data); err != nil {
		return fmt.Errorf("mount %s at %s: %w", source, target, err)
	}
	return nil
}

// unmountAll removes every mount from target. It is no error if nothing is mounted there or the path does not exist.
func unmountAll(target string) error {
	for {
		mounted, err := mountinfo.Mounted(target)
		if err != nil || !mounted {
			return skipMissing(err)
		}
		if err := unix.Unmount(target, 0); err != nil {
			return fmt.Errorf("unmount %s: %w", target, err)
		}
	}
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// checkRequest reports what a request to stage or publish a volume lacks.
func checkRequest(id, path string, capability *csi.VolumeCapability) error {
	if capability == nil {
		return status.Errorf(codes.InvalidArgument, "the volume %s: no capability is asked for", id)
	}
	return checkPath(id, path)
}

func checkPath(id, path string) error {
	if id == "" || path == "" {
		return status.Errorf(codes.InvalidArgument, "the volume %q at %q: both have to be named", id, path)
	}
	return nil
}

// grpcError converts an error to the gRPC code that kubelet and csi-snapshotter act on.
func grpcError(operation, id string, err error) error {
	code := codes.Internal
	switch {
	case errors.Is(err, errDiffers):
		code = codes.AlreadyExists
	case errors.Is(err, errTooSmall):
		code = codes.OutOfRange
	case errors.Is(err, fs.ErrNotExist):
		code = codes.NotFound
	case errors.Is(err, errBadID), errors.Is(err, errBadSnapshotID):
		code = codes.InvalidArgument
	}
	return status.Errorf(code, "%s the volume %s: %v", operation, id, err)
}
