package backupjob

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/varvebackup/varve/internal/domain"
	"github.com/varvebackup/varve/internal/errclass"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/launcher/rawdisk"
)

// maxVolumes limits a request. An instance has at most 64 disks.
const maxVolumes = 64

// ErrRequest is the error that New's errors wrap.
var ErrRequest = errclass.New(errclass.Invalid, "invalid backup request")

// validateRequest rejects a request that a later step could not carry out.
func validateRequest(req *pb.BeginBackupRequest, disks map[string]Disk) error {
	switch {
	case req.Uid == "" || req.Vm == "":
		return fmt.Errorf("%w: no uid or vm", ErrRequest)
	case req.TargetVolume == "" || !fs.ValidPath(req.TargetVolume):
		return fmt.Errorf("%w: target volume %q", ErrRequest, req.TargetVolume)
	case !fs.ValidPath(req.Directory) || req.Directory == ".":
		return fmt.Errorf("%w: directory %q is not a relative path", ErrRequest, req.Directory)
	case len(req.Volumes) == 0 || len(req.Volumes) > maxVolumes:
		return fmt.Errorf("%w: %d volumes, want 1 to %d", ErrRequest, len(req.Volumes), maxVolumes)
	}
	return validateVolumes(req, disks)
}

func validateVolumes(req *pb.BeginBackupRequest, disks map[string]Disk) error {
	seen := map[string]bool{}
	for _, v := range req.Volumes {
		disk, ok := disks[v.Volume]
		switch {
		case !ok:
			return fmt.Errorf("%w: the guest has no disk %q", ErrRequest, v.Volume)
		case seen[v.Volume]:
			return fmt.Errorf("%w: volume %q is listed twice", ErrRequest, v.Volume)
		case v.Incremental && req.BaseCheckpoint == "":
			return fmt.Errorf("%w: volume %q is incremental, but there is no base checkpoint", ErrRequest, v.Volume)
		case !disk.Tracked && req.Checkpoint != "":
			return fmt.Errorf("%w: disk %q is not tracked and cannot have a checkpoint", ErrRequest, v.Volume)
		}
		seen[v.Volume] = true
	}
	return nil
}

// IncrementalVolumes returns the volumes that start from the base checkpoint.
func IncrementalVolumes(req *pb.BeginBackupRequest) []string {
	var names []string
	for _, v := range req.Volumes {
		if v.Incremental {
			names = append(names, v.Volume)
		}
	}
	return names
}

// CountDirty returns the dirty bytes of each incremental disk. The error is a *Failure with BASE_LOST if a bitmap is
// unusable.
func (j *Job) CountDirty(ctx context.Context) (map[string]uint64, error) {
	wanted := IncrementalVolumes(j.req)
	if len(wanted) == 0 {
		return nil, nil
	}
	dirty, err := j.cfg.Guest.DirtyBytes(ctx, j.req.BaseCheckpoint)
	if lost := withoutCount(wanted, dirty); isLost(err) || (err == nil && len(lost) > 0) {
		return nil, baseLost(lost, wanted, err)
	}
	if err != nil {
		return nil, fmt.Errorf("count dirty bytes since %s: %w", j.req.BaseCheckpoint, err)
	}
	return dirty, nil
}

// DataBytes returns how much data of a disk the backup has, as far as that can be known without reading it. dirty is what
// CountDirty returned.
func (j *Job) DataBytes(ctx context.Context, v *pb.BackupVolume, dirty map[string]uint64) (uint64, error) {
	if v.Incremental {
		return dirty[v.Volume], nil
	}
	n, err := rawdisk.DataBytes(ctx, j.cfg.Disks[v.Volume].RawPath, domain.TargetClusterBytes)
	if err != nil {
		return 0, fmt.Errorf("estimate volume %s: %w", v.Volume, err)
	}
	return uint64(n), nil
}

// isLost reports whether an error means that a base has no usable bitmap.
func isLost(err error) bool { return errors.Is(err, domain.ErrCheckpointLost) }

// withoutCount returns the wanted volumes without a dirty count.
func withoutCount(wanted []string, dirty map[string]uint64) []string {
	var names []string
	for _, name := range wanted {
		if _, ok := dirty[name]; !ok {
			names = append(names, name)
		}
	}
	return names
}
