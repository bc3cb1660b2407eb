package kubevirtbackup

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/backupstate"
	"github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/tracking"
)

// planInput is everything that a plan depends on.
type planInput struct {
	// Spec is the backup's.
	Spec backupv1.VirtualMachineBackupSpec
	// Base is the checkpoint that the controller fixed as the base, or nil.
	Base *backupv1.Checkpoint
	// Tracker is the tracker's status after its checkpoint was validated. It is nil if the tracker is gone or none
	// is used.
	Tracker *backupv1.VirtualMachineBackupTrackerStatus
	// TargetUID is the UID of the claim that the backup goes to.
	TargetUID types.UID
	// Disks are the guest's disks, as the launcher reports them.
	Disks []*launcherpb.Disk
	// Instance is the guest's definition.
	Instance kubevirtv1.VirtualMachineInstanceSpec
}

// plan says how each disk is backed up.
type plan struct {
	// Volumes are the tracked disks, in the guest's order. If empty, there is nothing to back up.
	Volumes []plannedVolume
	// Base is the checkpoint that the incremental volumes start from, or nil if no volume is incremental.
	Base *backupv1.Checkpoint
	// Excluded are the guest's disks that are not backed up.
	Excluded []backupv1.ExcludedVolume
}

// plannedVolume is one disk of a plan: incremental, or full for a reason.
type plannedVolume struct {
	Name         string
	DiskTarget   string
	FullReason   backupv1.FullReason
	VirtualBytes int64
}

// incremental reports whether only what has changed is copied.
func (v plannedVolume) incremental() bool { return v.FullReason == "" }

// planDisks decides disk by disk: if one has lost its base, only that one is full. A disk that is not tracked is left
// out, because it cannot be backed up at a point in time that a later increment could start from.
func planDisks(in planInput) plan {
	var p plan
	for _, d := range in.Disks {
		if !d.GetTracked() {
			p.Excluded = append(p.Excluded, excludedDisk(&in.Instance, d))
			continue
		}
		v := plannedVolume{Name: d.GetVolume(), DiskTarget: d.GetTarget(), FullReason: fullReason(in, d.GetVolume()), VirtualBytes: int64(d.GetVirtualBytes())} //nolint:gosec // a disk's size
		if v.incremental() {
			p.Base = in.Tracker.LatestCheckpoint
		}
		p.Volumes = append(p.Volumes, v)
	}
	return p
}

// excludedDisk says why a disk is not backed up.
func excludedDisk(instance *kubevirtv1.VirtualMachineInstanceSpec, d *launcherpb.Disk) backupv1.ExcludedVolume {
	v := backupv1.ExcludedVolume{Name: d.GetVolume(), Reason: backupv1.ExcludedNotTracked, Message: backupstate.VolumeNotTracked(d.GetNotTracked())}
	switch {
	case tracking.IsReadOnly(instance, v.Name):
		v.Reason, v.Message = backupv1.ExcludedReadOnly, backupstate.VolumeReadOnly
	case tracking.IsShareable(instance, v.Name):
		v.Reason, v.Message = backupv1.ExcludedShareable, backupstate.VolumeShareable
	}
	return v
}

// fullReason says why a disk cannot be incremental. It returns an empty reason if it can.
func fullReason(in planInput, volume string) backupv1.FullReason {
	switch {
	case in.Spec.TrackerName() == "":
		return backupv1.FullNoTracker
	case in.Spec.ForceFullBackup:
		return backupv1.FullForced
	case in.Tracker == nil:
		return backupv1.FullNoCheckpoint
	}
	latest := in.Tracker.LatestCheckpoint
	// Use only the base that the controller read: the controller compares the tracker with it before it moves the
	// tracker.
	if latest != nil && in.Base != nil && latest.Name == in.Base.Name && slices.Contains(latest.Disks, volume) {
		if in.Spec.IsPull() {
			return "" // clients have what their tracker says
		}
		return unprovenTarget(in, latest.Target)
	}
	for _, d := range in.Tracker.Discarded {
		if d.Volume == volume {
			return d.Reason
		}
	}
	if latest == nil || in.Base == nil || latest.Name != in.Base.Name {
		return backupv1.FullNoCheckpoint
	}
	return backupv1.FullNewDisk
}

// unprovenTarget says why the target cannot be the one that holds the base. It returns an empty reason if the
// target is the same claim; the launcher then looks for the files on it. An incremental without its parent beside
// it is no backup.
func unprovenTarget(in planInput, base *backupv1.BackupTarget) backupv1.FullReason {
	switch {
	case base == nil || base.PVCUID == "" || base.Directory == "" || base.ManifestSHA256 == "":
		return backupv1.FullParentUnknown
	case base.PVCUID != in.TargetUID:
		return backupv1.FullTargetReplaced
	}
	return ""
}

// beginRequest returns what to tell the launcher.
func (p plan) beginRequest(b *backupv1.VirtualMachineBackup, target string) *launcherpb.BeginBackupRequest {
	r := &launcherpb.BeginBackupRequest{
		Uid: string(b.UID), Name: b.Name, Namespace: b.Namespace,
		Vm: b.Status.SourceName, Tracker: b.Spec.TrackerName(), Checkpoint: b.Status.CheckpointName,
		TargetVolume: target, Directory: b.Status.Directory, SkipQuiesce: b.Spec.SkipQuiesce, Pull: b.Spec.IsPull(),
	}
	if p.Base != nil {
		r.BaseCheckpoint, r.BaseBackupUid = p.Base.Name, string(p.Base.BackupUID)
	}
	if p.Base != nil && !r.Pull {
		r.BaseDirectory, r.BaseManifestSha256 = p.Base.Target.Directory, p.Base.Target.ManifestSHA256
	}
	for _, v := range b.Status.ExcludedVolumes {
		r.ExcludedVolumes = append(r.ExcludedVolumes, &launcherpb.ExcludedVolume{Volume: v.Name, Reason: string(v.Reason), Message: v.Message})
	}
	for _, v := range p.Volumes {
		r.Volumes = append(r.Volumes, &launcherpb.BackupVolume{Volume: v.Name, Incremental: v.incremental(), FullReason: string(v.FullReason)})
	}
	return r
}

// recordIn writes the plan into a backup's status.
func (p plan) recordIn(s *backupv1.VirtualMachineBackupStatus) {
	s.BackupType, s.IncludedVolumes = backupv1.Full, nil
	// The controller has written those that the guest does not have yet.
	s.ExcludedVolumes = slices.DeleteFunc(s.ExcludedVolumes, func(v backupv1.ExcludedVolume) bool { return v.Reason != backupv1.ExcludedNotAttached })
	s.ExcludedVolumes = append(s.ExcludedVolumes, p.Excluded...)
	for _, v := range p.Volumes {
		kind := backupv1.Full
		if v.incremental() {
			kind, s.BackupType = backupv1.Incremental, backupv1.Incremental
		}
		s.IncludedVolumes = append(s.IncludedVolumes, backupv1.IncludedVolume{
			Name: v.Name, VolumeName: v.Name, DiskTarget: v.DiskTarget, Type: kind, FullReason: v.FullReason, VirtualBytes: v.VirtualBytes,
		})
	}
	s.Type = s.BackupType
}
