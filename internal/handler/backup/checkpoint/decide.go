package checkpoint

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/types/known/timestamppb"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	"github.com/varvebackup/varve/internal/launcher/launcherpb"
)

// Why the launcher made a new overlay (launcher.proto, Disk.overlay_renewed).
const (
	renewedNew           = "NewOverlay"
	renewedReplaced      = "DiskReplaced"
	renewedUsedElsewhere = "UsedElsewhere"
	renewedWritten       = "WrittenWithoutOverlay"
)

// redefinitionOf returns the tracker's checkpoint as the launcher must know it, with those of its disks that the
// guest has and that are tracked. It returns nil if the tracker has no checkpoint or none of its disks is left.
func redefinitionOf(tracker *backupv1.VirtualMachineBackupTracker, disks []*launcherpb.Disk) *launcherpb.Checkpoint {
	latest := tracker.Status.LatestCheckpoint
	if latest == nil {
		return nil
	}
	c := &launcherpb.Checkpoint{Name: latest.Name, CreationTime: timestamppb.New(latest.CreationTime.Time)}
	for _, d := range disks {
		if d.GetTracked() && slices.Contains(latest.Disks, d.GetVolume()) {
			c.Volumes = append(c.Volumes, d.GetVolume())
		}
	}
	if len(c.GetVolumes()) == 0 {
		return nil
	}
	return c
}

// lostDisks returns which of the requested disks cannot be trusted, and why. A disk that the launcher says nothing about
// is not trusted either.
func lostDisks(asked *launcherpb.Checkpoint, results []*launcherpb.RedefineCheckpointsResponse_Result, disks []*launcherpb.Disk) []backupv1.DiscardedDisk {
	var result *launcherpb.RedefineCheckpointsResponse_Result
	if i := slices.IndexFunc(results, func(r *launcherpb.RedefineCheckpointsResponse_Result) bool { return r.GetName() == asked.GetName() }); i >= 0 {
		result = results[i]
	}
	var all []backupv1.DiscardedDisk
	for _, volume := range asked.GetVolumes() {
		if slices.Contains(result.GetValid(), volume) {
			continue
		}
		seen := result.GetLost()[volume]
		if seen == "" {
			seen = "the bitmap could not be validated"
		}
		all = append(all, discardedDisk(volume, seen, disks))
	}
	return all
}

func discardedDisk(volume, seen string, disks []*launcherpb.Disk) backupv1.DiscardedDisk {
	const most = 512
	seen = string([]rune(seen)[:min(most, len([]rune(seen)))])
	d := backupv1.DiscardedDisk{Volume: volume, Reason: backupv1.FullBitmapLost, Message: seen}
	switch renewed := overlayRenewed(volume, disks); renewed {
	case "", renewedNew:
	case renewedReplaced:
		d.Reason, d.Message = backupv1.FullDiskReplaced, "the volume has another disk than before: "+seen
	case renewedUsedElsewhere:
		d.Reason, d.Message = backupv1.FullDiskReplaced, "something else may have written to the disk's claim since this machine last tracked it: "+seen
	case renewedWritten:
		d.Reason, d.Message = backupv1.FullDiskReplaced, "the disk was written without its overlay: "+seen
	default:
		d.Message = fmt.Sprintf("the overlay was created again at this start (%s): %s", renewed, seen)
	}
	return d
}

// overlayRenewed returns why the launcher made a new overlay for a volume, or "".
func overlayRenewed(volume string, disks []*launcherpb.Disk) string {
	i := slices.IndexFunc(disks, func(d *launcherpb.Disk) bool { return d.GetVolume() == volume })
	if i < 0 {
		return ""
	}
	return disks[i].GetOverlayRenewed()
}

// Discard removes disks from a tracker's checkpoint, if that still is the named one. It returns those that were in
// it.
func Discard(status *backupv1.VirtualMachineBackupTrackerStatus, checkpoint string, disks []backupv1.DiscardedDisk) []backupv1.DiscardedDisk {
	latest := status.LatestCheckpoint
	if latest == nil || latest.Name != checkpoint {
		return nil
	}
	var gone []backupv1.DiscardedDisk
	for _, d := range disks {
		i := slices.Index(latest.Disks, d.Volume)
		if i < 0 {
			continue
		}
		latest.Disks = slices.Delete(latest.Disks, i, i+1)
		latest.Volumes = slices.DeleteFunc(latest.Volumes, func(v backupv1.CheckpointVolume) bool { return v.VolumeName == d.Volume })
		status.Discarded = slices.DeleteFunc(status.Discarded, func(old backupv1.DiscardedDisk) bool { return old.Volume == d.Volume })
		status.Discarded = append(status.Discarded, d)
		gone = append(gone, d)
	}
	if len(latest.Disks) == 0 {
		status.LatestCheckpoint = nil
	}
	return gone
}

// unreferencedCheckpoints returns the names of libvirt's checkpoints, and of bitmaps that libvirt does not know, that no
// tracker names.
func unreferencedCheckpoints(state *launcherpb.State, trackers []backupv1.VirtualMachineBackupTracker) []string {
	var names []string
	for _, c := range state.GetCheckpoints() {
		names = append(names, c.GetName())
	}
	names = append(names, state.GetStrayBitmaps()...)
	return slices.DeleteFunc(names, func(name string) bool {
		return slices.ContainsFunc(trackers, func(t backupv1.VirtualMachineBackupTracker) bool {
			return t.Status.LatestCheckpoint != nil && t.Status.LatestCheckpoint.Name == name
		})
	})
}
