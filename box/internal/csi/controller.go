package csi

import (
	"context"
	"strconv"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// defaultBytes is the size of a volume that is asked for without one.
const defaultBytes = 1 << 30

// controllerServer creates and deletes volumes and snapshots (CSI specification, "Controller Service RPC"). New volumes
// are on its own node; volumes from snapshots and of other nodes are seen by all.
type controllerServer struct {
	csi.UnimplementedControllerServer
	store   store
	pending sync.Map // the names that a call works on: a second call for one is Aborted, as the specification wants
}

// begin says whether no other call works on name. The caller ends its own with the function.
func (c *controllerServer) begin(name string) (end func(), err error) {
	if _, busy := c.pending.LoadOrStore(name, true); busy {
		return nil, status.Errorf(codes.Aborted, "another call works on %s", name)
	}
	return func() { c.pending.Delete(name) }, nil
}

func (c *controllerServer) ControllerGetCapabilities(
	context.Context, *csi.ControllerGetCapabilitiesRequest,
) (*csi.ControllerGetCapabilitiesResponse, error) {
	resp := &csi.ControllerGetCapabilitiesResponse{}
	for _, t := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME, csi.ControllerServiceCapability_RPC_CLONE_VOLUME,
		// Without LIST_SNAPSHOTS, csi-snapshotter cannot tell the size of a snapshot that it has not made itself.
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT, csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS,
	} {
		resp.Capabilities = append(resp.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: t}},
		})
	}
	return resp, nil
}

// CreateVolume creates a volume on this node: blank, or as a clone of a snapshot or of another volume.
func (c *controllerServer) CreateVolume(ctx context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if r.GetName() == "" {
		return nil, status.Error(codes.InvalidArgument, "the volume has no name")
	}
	spec, err := c.describeVolume(r)
	if err != nil {
		return nil, err
	}
	end, err := c.begin(r.GetName())
	if err != nil {
		return nil, err
	}
	defer end()
	if err := c.store.createVolume(ctx, r.GetName(), spec); err != nil {
		return nil, grpcError("create", r.GetName(), err)
	}
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{
		VolumeId: r.GetName(), CapacityBytes: spec.bytes, ContentSource: r.GetVolumeContentSource(),
		VolumeContext: map[string]string{nodeAttribute: c.store.node},
	}}, nil
}

// describeVolume checks a request for a volume.
func (c *controllerServer) describeVolume(r *csi.CreateVolumeRequest) (volumeSpec, error) {
	spec, err := describeCapabilities(r.GetVolumeCapabilities())
	if err != nil {
		return spec, err
	}
	var sourceBytes int64
	switch source := r.GetVolumeContentSource(); {
	case source.GetSnapshot() != nil:
		snap, err := c.store.findSnapshot(source.GetSnapshot().GetSnapshotId())
		if err != nil {
			return spec, grpcError("read the source of", r.GetName(), err)
		}
		spec.source, sourceBytes = snap.file, snap.bytes
	case source.GetVolume() != nil:
		file, info, err := c.store.statVolume(source.GetVolume().GetVolumeId())
		if err != nil {
			return spec, grpcError("read the source of", r.GetName(), err)
		}
		spec.source, sourceBytes = file, info.Size()
	case spec.readOnly:
		return spec, status.Error(codes.InvalidArgument, "a read-only volume without a source would be empty for ever")
	}
	required, limit := r.GetCapacityRange().GetRequiredBytes(), r.GetCapacityRange().GetLimitBytes()
	switch {
	case required > 0:
		spec.bytes = roundUp(required)
	case sourceBytes > 0:
		spec.bytes = sourceBytes
	default:
		spec.bytes = defaultBytes
		if limit > 0 {
			spec.bytes = min(spec.bytes, limit)
		}
	}
	if limit > 0 && spec.bytes > limit {
		return spec, status.Errorf(codes.OutOfRange, "the volume would have %d bytes, and the limit is %d", spec.bytes, limit)
	}
	return spec, nil
}

// describeCapabilities returns what the capabilities say about a volume, or why no volume has them all.
func describeCapabilities(all []*csi.VolumeCapability) (volumeSpec, error) {
	if len(all) == 0 {
		return volumeSpec{}, status.Error(codes.InvalidArgument, "no capabilities are asked for")
	}
	var spec volumeSpec
	for i, c := range all {
		next := volumeSpec{filesystem: c.GetBlock() == nil}
		switch mode := c.GetAccessMode().GetMode(); {
		case isReader(mode):
			next.readOnly = true
		case mode == csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER:
			next.shared = true
		case isLocalWriter(mode):
		default:
			return spec, status.Errorf(codes.InvalidArgument, "access mode %s: a volume is written by one node or by all", mode)
		}
		if i > 0 && next != spec {
			return spec, status.Error(codes.InvalidArgument, "a volume is either read-only or not, shared or not, and a file system or a device")
		}
		spec = next
	}
	return spec, nil
}

func isReader(mode csi.VolumeCapability_AccessMode_Mode) bool {
	return mode == csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY || mode == csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
}

func isLocalWriter(mode csi.VolumeCapability_AccessMode_Mode) bool {
	return mode == csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER ||
		mode == csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER ||
		mode == csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
}

// DeleteVolume deletes a volume, on whatever node it is.
func (c *controllerServer) DeleteVolume(_ context.Context, r *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	if r.GetVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "no volume is named")
	}
	end, err := c.begin(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	defer end()
	if checkID(r.GetVolumeId()) == nil { // others cannot exist
		if err := c.store.removeVolume(r.GetVolumeId()); err != nil {
			return nil, grpcError("delete", r.GetVolumeId(), err)
		}
	}
	return &csi.DeleteVolumeResponse{}, nil
}

// ValidateVolumeCapabilities confirms what the volume can do.
func (c *controllerServer) ValidateVolumeCapabilities(
	_ context.Context, r *csi.ValidateVolumeCapabilitiesRequest,
) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	if r.GetVolumeId() == "" || len(r.GetVolumeCapabilities()) == 0 {
		return nil, status.Error(codes.InvalidArgument, "a volume and its capabilities have to be named")
	}
	_, info, err := c.store.statVolume(r.GetVolumeId())
	if err != nil {
		return nil, grpcError("validate", r.GetVolumeId(), err)
	}
	spec, err := describeCapabilities(r.GetVolumeCapabilities())
	if err != nil {
		return &csi.ValidateVolumeCapabilitiesResponse{Message: status.Convert(err).Message()}, nil
	}
	if isReadOnly(info) && !spec.readOnly {
		return &csi.ValidateVolumeCapabilitiesResponse{Message: "the volume is read-only"}, nil
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext: r.GetVolumeContext(), VolumeCapabilities: r.GetVolumeCapabilities(), Parameters: r.GetParameters(),
	}}, nil
}

// CreateSnapshot makes a snapshot of a volume, on whatever node it is, at once.
func (c *controllerServer) CreateSnapshot(_ context.Context, r *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	if r.GetName() == "" || r.GetSourceVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "a snapshot has a name and the ID of a volume")
	}
	end, err := c.begin(snapshotSeparator + r.GetName())
	if err != nil {
		return nil, err
	}
	defer end()
	snap, err := c.store.createSnapshot(r.GetSourceVolumeId(), r.GetName())
	if err != nil {
		return nil, grpcError("snapshot", r.GetSourceVolumeId(), err)
	}
	return &csi.CreateSnapshotResponse{Snapshot: describeSnapshot(snap)}, nil
}

// DeleteSnapshot deletes a snapshot.
func (c *controllerServer) DeleteSnapshot(_ context.Context, r *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	if r.GetSnapshotId() == "" {
		return nil, status.Error(codes.InvalidArgument, "no snapshot is named")
	}
	if err := c.store.removeSnapshot(r.GetSnapshotId()); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csi.DeleteSnapshotResponse{}, nil
}

// ListSnapshots lists the snapshots in the order of their IDs. A token is the number of snapshots before the page.
func (c *controllerServer) ListSnapshots(_ context.Context, r *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	all, err := c.store.listSnapshots()
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	var chosen []*csi.ListSnapshotsResponse_Entry
	for _, snap := range all {
		if (r.GetSnapshotId() == "" || r.GetSnapshotId() == snap.id) && (r.GetSourceVolumeId() == "" || r.GetSourceVolumeId() == snap.volume) {
			chosen = append(chosen, &csi.ListSnapshotsResponse_Entry{Snapshot: describeSnapshot(snap)})
		}
	}
	first := 0
	if token := r.GetStartingToken(); token != "" {
		if first, err = strconv.Atoi(token); err != nil || first < 0 || first > len(chosen) {
			return nil, status.Errorf(codes.Aborted, "the token %q does not continue this list", token)
		}
	}
	end, next := len(chosen), ""
	if most := int(r.GetMaxEntries()); most > 0 && first+most < end {
		end = first + most
		next = strconv.Itoa(end)
	}
	return &csi.ListSnapshotsResponse{Entries: chosen[first:end], NextToken: next}, nil
}

func describeSnapshot(s snapshot) *csi.Snapshot {
	return &csi.Snapshot{
		SnapshotId: s.id, SourceVolumeId: s.volume, SizeBytes: s.bytes, CreationTime: timestamppb.New(s.created), ReadyToUse: true,
	}
}
