package kubevirtbackup

import (
	"fmt"
	"slices"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/layout"
)

// Failure is why a backup failed: a reason of api/backup/v1alpha1 and a message for people.
type Failure struct {
	Reason, Message string
}

// failed translates the launcher's failure. The launcher knows what happened to the job, and the objects tell who
// wanted it. An abort comes from the user's deletion or from a forced stop. A stop comes from a user or from the
// pod.
func failed(b *backupv1.VirtualMachineBackup, vmi *kubevirtv1.VirtualMachineInstance, job *launcherpb.Backup) Failure {
	f := Failure{Reason: backupv1.ReasonHypervisorError, Message: job.GetMessage()}
	switch job.GetFailure() {
	case launcherpb.Backup_ABORTED:
		f = aborted(b, vmi)
	case launcherpb.Backup_STOPPED:
		f = stopped(vmi)
	case launcherpb.Backup_INSUFFICIENT_SPACE:
		f.Reason = backupv1.ReasonInsufficientSpace
	case launcherpb.Backup_TARGET_FULL:
		f.Reason = backupv1.ReasonTargetFull
	case launcherpb.Backup_TARGET_INVALID:
		f.Reason = backupv1.ReasonTargetInvalid
	case launcherpb.Backup_TARGET_STALLED:
		f.Reason = backupv1.ReasonTargetStalled
	case launcherpb.Backup_GUEST_SHUTDOWN:
		f.Reason = backupv1.ReasonGuestShutdown
	case launcherpb.Backup_GUEST_CRASHED:
		f.Reason = backupv1.ReasonGuestCrashed
	case launcherpb.Backup_FAILURE_UNSPECIFIED, launcherpb.Backup_HYPERVISOR_ERROR, launcherpb.Backup_BASE_LOST:
	}
	if f.Message == "" {
		f.Message = fmt.Sprintf("the launcher reports %s", job.GetFailure())
	}
	return f
}

func aborted(b *backupv1.VirtualMachineBackup, vmi *kubevirtv1.VirtualMachineInstance) Failure {
	if b.DeletionTimestamp.IsZero() && forced(vmi) {
		return stopped(vmi)
	}
	return Failure{Reason: backupv1.ReasonAborted, Message: "the backup was deleted while it ran"}
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

func detached() Failure {
	return Failure{Reason: backupv1.ReasonTargetDetached, Message: "the pod that holds the target on the node ended while the backup ran"}
}

// stopped returns the failure of a backup whose guest is being stopped. vmi may be nil.
func stopped(vmi *kubevirtv1.VirtualMachineInstance) Failure {
	switch {
	case forced(vmi):
		return Failure{Reason: backupv1.ReasonStopForced, Message: "the virtual machine was stopped with force while the backup ran"}
	case vmi == nil:
		return Failure{Reason: backupv1.ReasonVMDeleted, Message: "the virtual machine instance is gone"}
	case !vmi.DeletionTimestamp.IsZero():
		return Failure{Reason: backupv1.ReasonVMDeleted, Message: "the virtual machine is being stopped"}
	}
	return Failure{Reason: backupv1.ReasonGuestShutdown, Message: "the guest was shut down from outside, as when its pod is deleted"}
}

func forced(vmi *kubevirtv1.VirtualMachineInstance) bool {
	return vmi != nil && !vmi.DeletionTimestamp.IsZero() && vmi.Annotations[layout.AnnotationForceStop] == "true"
}

// guestGone reports whether the guest that a backup was started on has ended for good, and how that makes the
// backup fail. state is the last one that the launcher reported, or nil. vmi is nil if no instance of the name
// exists.
func guestGone(b *backupv1.VirtualMachineBackup, vmi *kubevirtv1.VirtualMachineInstance, state *launcherpb.State) (Failure, bool) {
	switch {
	case vmi == nil || vmi.UID != b.Status.InstanceUID:
		return stopped(nil), true
	case state.GetPhase() == launcherpb.State_ENDED:
		return ended(vmi, state), true
	case vmi.Status.Phase == kubevirtv1.PhaseSucceeded:
		return Failure{Reason: backupv1.ReasonGuestShutdown, Message: "the guest shut down while the backup ran"}, true
	case vmi.Status.Phase == kubevirtv1.PhaseFailed:
		message := "the guest or its pod died while the backup ran"
		if vmi.Status.Reason != "" {
			message += " (" + vmi.Status.Reason + ")"
		}
		return Failure{Reason: backupv1.ReasonGuestCrashed, Message: message}, true
	}
	return Failure{}, false
}

func ended(vmi *kubevirtv1.VirtualMachineInstance, state *launcherpb.State) Failure {
	f := Failure{Reason: backupv1.ReasonGuestCrashed, Message: "the guest crashed while the backup ran"}
	switch state.GetEnd() {
	case launcherpb.State_GUEST_SHUTDOWN:
		f = Failure{Reason: backupv1.ReasonGuestShutdown, Message: "the guest shut down while the backup ran"}
	case launcherpb.State_REQUESTED_SHUTDOWN, launcherpb.State_KILLED:
		f = stopped(vmi)
	case launcherpb.State_END_UNSPECIFIED, launcherpb.State_CRASHED, launcherpb.State_START_FAILED:
		if state.GetMessage() != "" {
			f.Message += ": " + state.GetMessage()
		}
	}
	return f
}
