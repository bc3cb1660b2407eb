package kubevirtbackup

import (
	"fmt"
	"time"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
)

// decideOnNode supervises Starting and Copying, which the node's handler normally ends. The controller ends them
// only if the handler cannot or does not.
func decideOnNode(in *Input) Decision {
	s := &in.Backup.Status
	if in.guestGone() {
		wait := in.Seen.GoneSince.Add(in.Limits.GuestGone)
		if passed(in, wait) {
			reason, message := guestEnd(in)
			return copyFailed(in, reason, message)
		}
		return Decision{Wake: wait}
	}
	if in.deleting() {
		wait := in.Backup.DeletionTimestamp.Add(in.Limits.Aborting)
		if passed(in, wait) {
			return copyFailed(in, backupv1.ReasonAborted, aborted(in)+fmt.Sprintf(" Node %s did not confirm the abort within %s.", s.NodeName, in.Limits.Aborting))
		}
		d := supervise(in)
		d.Wake = earlier(d.Wake, wait)
		return d
	}
	if what := targetGone(in); what != "" {
		return copyFailed(in, backupv1.ReasonTargetGone, what)
	}
	if what := taken(in); what != "" {
		return copyFailed(in, backupv1.ReasonTargetInUse, what)
	}
	return supervise(in)
}

// targetGone says how the backup's target claim went away. It returns an empty string if the claim is still there.
// The files go with the claim, even while a deleted claim still waits for the backup to let go of it.
func targetGone(in *Input) string {
	uid, name := in.Backup.Status.PVCUID, in.Backup.Spec.PVCName
	var what string
	switch {
	case uid == "": // an older version planned the backup
		return ""
	case in.Claim == nil || in.Claim.UID == uid && in.Claim.DeletionTimestamp != nil:
		what = "was deleted"
	case in.Claim.UID != uid:
		what = "was replaced by another of the same name"
	default:
		return ""
	}
	return fmt.Sprintf("PersistentVolumeClaim %s %s while the backup was written to it, and its files go with it; create another backup when the claim is there again.", name, what)
}

func supervise(in *Input) Decision {
	s := &in.Backup.Status
	deadline, message := startingDeadline(in), fmt.Sprintf("Node %s did not start the backup within %s; see whether varve-handler runs there.", s.NodeName, in.Limits.Starting)
	if s.Phase == backupv1.BackupCopying {
		deadline = in.Seen.ProgressSince.Add(in.Limits.Stalled)
		message = fmt.Sprintf("The copy made no progress for %s; see the target volume and varve-handler on node %s.", in.Limits.Stalled, s.NodeName)
	}
	if passed(in, deadline) {
		return copyFailed(in, backupv1.ReasonDeadlineExceeded, message)
	}
	d := write(in, change{phase: s.Phase, reason: s.Reason, message: s.Message, deadline: recorded(in, deadline, in.Limits.Stalled)})
	d.Wake = deadline
	return d
}

func startingDeadline(in *Input) time.Time {
	return deadlineOr(in, in.Seen.PhaseSince, in.Limits.Starting)
}

// recorded returns the deadline to show in status. It keeps the recorded one while that is off by no more than a
// third of limit, so that not every progress report costs a second write.
func recorded(in *Input, deadline time.Time, limit time.Duration) time.Time {
	s := &in.Backup.Status
	if s.PhaseDeadline == nil {
		return deadline
	}
	if diff := deadline.Sub(s.PhaseDeadline.Time).Abs(); diff <= limit/3 {
		return s.PhaseDeadline.Time
	}
	return deadline
}

func copyFailed(in *Input, reason, message string) Decision {
	return write(in, change{phase: backupv1.BackupCopyFailed, reason: reason, message: message})
}

// guestEnd says how the guest ended, as far as the objects show.
func guestEnd(in *Input) (reason, message string) {
	name := in.Backup.Status.SourceName
	instance := in.instance()
	switch {
	case instance == nil && in.Instance != nil:
		return backupv1.ReasonVMDeleted, fmt.Sprintf("VirtualMachineInstance %s was replaced by another of the same name while the backup ran; create another backup.", name)
	case instance == nil && in.VM == nil:
		return backupv1.ReasonVMDeleted, fmt.Sprintf("VirtualMachine %s was deleted while the backup ran.", name)
	case instance == nil:
		return backupv1.ReasonVMDeleted, fmt.Sprintf("VirtualMachineInstance %s was deleted while the backup ran; start the machine and create another backup.", name)
	case instance.Status.Phase == kubevirtv1.PhaseSucceeded:
		return backupv1.ReasonGuestShutdown, fmt.Sprintf("The guest of VirtualMachine %s shut down while the backup ran; start it and create another backup.", name)
	default:
		m := fmt.Sprintf("The guest of VirtualMachine %s ended unexpectedly while the backup ran", name)
		if instance.Status.Reason != "" {
			m += " (" + instance.Status.Reason + ")"
		}
		return backupv1.ReasonGuestCrashed, m + "; its next backup is full."
	}
}

// earlier returns the earlier of two times. Zero means never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
