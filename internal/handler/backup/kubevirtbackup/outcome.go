package kubevirtbackup

import (
	"fmt"
	"slices"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/backupstate"
	"github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/layout"
)

// stateOfFailure translates the launcher's failure. The launcher knows what happened to the job, and the objects tell who
// wanted it. An abort comes from the user's deletion or from a forced stop. A stop comes from a user or from the
// pod.
func stateOfFailure(b *backupv1.VirtualMachineBackup, vmi *kubevirtv1.VirtualMachineInstance, job *launcherpb.Backup) backupstate.State {
	message := job.GetMessage()
	if message == "" {
		message = fmt.Sprintf("The launcher reports %s", job.GetFailure())
	}
	switch job.GetFailure() {
	case launcherpb.Backup_ABORTED:
		return stateOfAbort(b, vmi)
	case launcherpb.Backup_STOPPED:
		return stateOfStop(b, vmi)
	case launcherpb.Backup_INSUFFICIENT_SPACE:
		return backupstate.InsufficientSpace(message)
	case launcherpb.Backup_TARGET_FULL:
		return backupstate.TargetFull(message)
	case launcherpb.Backup_SCRATCH_FULL:
		return backupstate.ScratchFull(message)
	case launcherpb.Backup_TARGET_INVALID:
		return backupstate.TargetInvalid(message)
	case launcherpb.Backup_TARGET_STALLED:
		return backupstate.TargetStalled(message)
	case launcherpb.Backup_GUEST_SHUTDOWN:
		return backupstate.GuestShutdown(b.Status.SourceName, "")
	case launcherpb.Backup_GUEST_CRASHED:
		return backupstate.GuestCrashed(b.Status.SourceName, "")
	case launcherpb.Backup_FAILURE_UNSPECIFIED, launcherpb.Backup_HYPERVISOR_ERROR, launcherpb.Backup_BASE_LOST:
	}
	return backupstate.HypervisorError(message)
}

func stateOfAbort(b *backupv1.VirtualMachineBackup, vmi *kubevirtv1.VirtualMachineInstance) backupstate.State {
	if b.DeletionTimestamp.IsZero() && isStopForced(vmi) {
		return stateOfStop(b, vmi)
	}
	return backupstate.Aborted(b.Name)
}

// targetLost reports whether the backup's target is no longer in the launcher, or is about to be taken out of it. A
// backup is handed to the node when its target is mounted, so every other phase of the volume means that the
// attachment pod was lost.
func targetLost(b *backupv1.VirtualMachineBackup, vmi *kubevirtv1.VirtualMachineInstance) bool {
	if vmi == nil {
		return false
	}
	name := layout.BackupUtilityVolume(b.UID)
	return slices.ContainsFunc(vmi.Status.VolumeStatus, func(s kubevirtv1.VolumeStatus) bool {
		return s.Name == name && s.HotplugVolume != nil && s.Phase != kubevirtv1.VolumeMountedToPod
	})
}

// stateOfStop returns how a backup ends whose guest is being stopped. vmi may be nil.
func stateOfStop(b *backupv1.VirtualMachineBackup, vmi *kubevirtv1.VirtualMachineInstance) backupstate.State {
	machine := b.Status.SourceName
	switch {
	case isStopForced(vmi):
		return backupstate.StopForced(machine)
	case vmi == nil:
		return backupstate.InstanceDeleted(machine)
	case !vmi.DeletionTimestamp.IsZero():
		return backupstate.MachineStopped(machine)
	}
	return backupstate.GuestShutdown(machine, backupstate.ShutdownFromOutside)
}

func isStopForced(vmi *kubevirtv1.VirtualMachineInstance) bool {
	return vmi != nil && !vmi.DeletionTimestamp.IsZero() && vmi.Annotations[layout.AnnotationForceStop] == "true"
}

// guestGone reports whether the guest that a backup was started on has ended for good, and how the backup ends then.
// state is the last one that the launcher reported, or nil. The launcher knows better than the instance how the guest
// ended. vmi is nil if no instance of the name exists.
func guestGone(b *backupv1.VirtualMachineBackup, vmi *kubevirtv1.VirtualMachineInstance, state *launcherpb.State) (backupstate.State, bool) {
	if vmi != nil && vmi.UID == b.Status.InstanceUID && state.GetPhase() == launcherpb.State_ENDED {
		return stateOfEnd(b, vmi, state), true
	}
	return backupstate.GuestEnd(b.Status.SourceName, b.Status.InstanceUID, vmi)
}

func stateOfEnd(b *backupv1.VirtualMachineBackup, vmi *kubevirtv1.VirtualMachineInstance, state *launcherpb.State) backupstate.State {
	switch state.GetEnd() {
	case launcherpb.State_GUEST_SHUTDOWN:
		return backupstate.GuestShutdown(b.Status.SourceName, "")
	case launcherpb.State_REQUESTED_SHUTDOWN, launcherpb.State_KILLED:
		return stateOfStop(b, vmi)
	case launcherpb.State_END_UNSPECIFIED, launcherpb.State_CRASHED, launcherpb.State_START_FAILED,
		launcherpb.State_MIGRATED:
		// A guest that moves has no backup.
	}
	return backupstate.GuestCrashed(b.Status.SourceName, state.GetMessage())
}
