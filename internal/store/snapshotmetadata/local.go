package snapshotmetadata

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/diskset"
	"github.com/varvebackup/varve/internal/store/names"
)

// maxRanges is how many ranges a message has.
const maxRanges = 2048

// errOffset: the offset is behind the end of the volume. The code is OutOfRange.
var errOffset = errclass.New(errclass.Invalid, "offset")

// query asks for what a snapshot has, or for what differs from a base if that is not empty. Both are CSI handles.
type query struct {
	target, base string
	start        int64
	most         int32
}

// sender sends a message of an answer: the volume's size, and ranges in order.
type sender func(bytes int64, ranges []*csi.BlockMetadata) error

// Local answers for the snapshots on the node's own disks. It is the CSI service that another store asks.
type Local struct {
	csi.UnimplementedSnapshotMetadataServer

	Disks *diskset.Set
}

// GetMetadataAllocated implements csi.SnapshotMetadataServer, as does GetMetadataDelta.
func (l *Local) GetMetadataAllocated(
	r *csi.GetMetadataAllocatedRequest, stream csi.SnapshotMetadata_GetMetadataAllocatedServer,
) error {
	q := query{target: r.GetSnapshotId(), start: r.GetStartingOffset(), most: r.GetMaxResults()}
	return describeError(l.answer(stream.Context(), q, func(bytes int64, ranges []*csi.BlockMetadata) error {
		return stream.Send(&csi.GetMetadataAllocatedResponse{
			BlockMetadataType: csi.BlockMetadataType_VARIABLE_LENGTH, VolumeCapacityBytes: bytes, BlockMetadata: ranges,
		})
	}))
}

// GetMetadataDelta implements csi.SnapshotMetadataServer.
func (l *Local) GetMetadataDelta(
	r *csi.GetMetadataDeltaRequest, stream csi.SnapshotMetadata_GetMetadataDeltaServer,
) error {
	if r.GetBaseSnapshotId() == "" {
		return status.Error(codes.InvalidArgument, "base_snapshot_id is empty: name the earlier snapshot")
	}
	q := query{
		target: r.GetTargetSnapshotId(), base: r.GetBaseSnapshotId(), start: r.GetStartingOffset(), most: r.GetMaxResults(),
	}
	return describeError(l.answer(stream.Context(), q, func(bytes int64, ranges []*csi.BlockMetadata) error {
		return stream.Send(&csi.GetMetadataDeltaResponse{
			BlockMetadataType: csi.BlockMetadataType_VARIABLE_LENGTH, VolumeCapacityBytes: bytes, BlockMetadata: ranges,
		})
	}))
}

// answer sends at least one message, so that an answer without ranges still says which volume it is about.
func (l *Local) answer(ctx context.Context, q query, send sender) error {
	on, target, base, err := l.findSnapshots(ctx, q)
	if err != nil {
		return err
	}
	if q.start < 0 || q.start > target.Bytes {
		return errclass.Errorf(errOffset, "starting_offset is %d, and the volume has %d bytes", q.start, target.Bytes)
	}
	most := maxRanges
	if q.most > 0 {
		most = min(most, int(q.most))
	}
	var ranges []*csi.BlockMetadata
	sent := false
	for e, err := range on.Changed(ctx, target.Name, base) {
		if err != nil {
			return err
		}
		if e = e.Intersect(extent.Extent{Offset: q.start, Length: target.Bytes - q.start}); e.Empty() {
			continue
		}
		ranges = append(ranges, &csi.BlockMetadata{ByteOffset: e.Offset, SizeBytes: e.Length})
		if len(ranges) < most {
			continue
		}
		if err := send(target.Bytes, ranges); err != nil {
			return err
		}
		ranges, sent = nil, true
	}
	if len(ranges) == 0 && sent {
		return nil
	}
	return send(target.Bytes, ranges)
}

// findSnapshots returns the disk, the snapshot and the name of the base, which must be a snapshot of the same volume.
// An error is of class NotFound if one of them does not exist.
func (l *Local) findSnapshots(ctx context.Context, q query) (diskset.Disk, disk.Object, disk.Name, error) {
	none := func(err error) (diskset.Disk, disk.Object, disk.Name, error) {
		return diskset.Disk{}, disk.Object{}, "", err
	}
	uuid, uid, ok := names.ParseSnapshotHandle(q.target)
	if !ok {
		return none(errclass.Errorf(errclass.NotFound, "%q is not the handle of a snapshot", q.target))
	}
	on, err := l.Disks.Find(uuid)
	if err != nil {
		return none(errclass.Errorf(errclass.Transient, "%v: look at status.diskStatus of the Nodes", err))
	}
	objects, err := on.List(ctx)
	if err != nil {
		return none(fmt.Errorf("list the objects of disk %s: %w", on.Name, err))
	}
	target, err := findSnapshot(objects, q.target, uid)
	if err != nil || q.base == "" {
		return on, target, "", err
	}
	baseDisk, baseUID, ok := names.ParseSnapshotHandle(q.base)
	if !ok || baseDisk != uuid {
		return none(errclass.Errorf(errclass.NotFound, "%q is not a snapshot on the disk of %s", q.base, q.target))
	}
	base, err := findSnapshot(objects, q.base, baseUID)
	if err != nil {
		return none(err)
	}
	if base.Volume != target.Volume {
		return none(errclass.Errorf(errclass.Invalid, "%s is of the volume %s, and %s of %s: use snapshots of one volume",
			q.base, base.Volume, q.target, target.Volume))
	}
	return on, target, base.Name, nil
}

func findSnapshot(objects []disk.Object, handle string, uid disk.UID) (disk.Object, error) {
	i := slices.IndexFunc(objects, func(o disk.Object) bool { return o.UID == uid && o.Kind == disk.KindSnapshot })
	switch {
	case i < 0:
		return disk.Object{}, errclass.Errorf(errclass.NotFound, "there is no snapshot %s", handle)
	case objects[i].State != disk.StateReady:
		return disk.Object{}, errclass.Errorf(errclass.Corrupt, "the snapshot %s is damaged", handle)
	}
	return objects[i], nil
}

// describeError gives an error its gRPC code, unless it has one.
func describeError(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	if errors.Is(err, errOffset) {
		return status.Error(codes.OutOfRange, err.Error())
	}
	return status.Error(errclass.GRPCCode(err), err.Error())
}
