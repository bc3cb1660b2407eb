package kubevirtbackup

import (
	"time"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	"github.com/varvebackup/varve/internal/backupstate"
)

// decideOnNode supervises Starting, Copying and Serving, which the node's handler normally ends. The controller ends them
// only if the handler cannot or does not.
func decideOnNode(in *input) decision {
	s := &in.Backup.Status
	if in.guestGone() {
		wait := in.Seen.GoneSince.Add(in.Limits.GuestGone)
		if deadlinePassed(in, wait) {
			return copyFailed(in, guestEnd(in))
		}
		return decision{Wake: wait}
	}
	if in.isBeingDeleted() {
		wait := in.Seen.DeletionSince.Add(in.Limits.Aborting)
		if deadlinePassed(in, wait) {
			return copyFailed(in, backupstate.AbortUnconfirmed(in.Backup.Name, s.NodeName, in.Limits.Aborting))
		}
		if s.Phase == backupv1.BackupServing {
			// What the condition Ready says now decides how the backup ends.
			d := toStatus(in, change{phase: s.Phase, state: in.currentState(), deadline: wait})
			d.Wake = wait
			return d
		}
		d := superviseNode(in)
		d.Wake = earlierTime(d.Wake, wait)
		return d
	}
	if end, gone := targetGone(in); gone {
		return copyFailed(in, end)
	}
	if end, taken := targetTaken(in); taken {
		return copyFailed(in, end)
	}
	if in.hasExpired() {
		return copyFailed(in, ttlExpired(in))
	}
	if s.Phase == backupv1.BackupServing {
		return decideServing(in)
	}
	return superviseNode(in)
}

// targetGone reports whether the backup's target claim went away, and how the backup ends then. The files go with the
// claim, even while a deleted claim still waits for the backup to let go of it.
func targetGone(in *input) (backupstate.State, bool) {
	uid, name := in.Backup.Status.PVCUID, in.Backup.Spec.PVCName
	switch {
	case uid == "": // an older version planned the backup
		return backupstate.State{}, false
	case in.isPull() && in.Backup.Status.Phase == backupv1.BackupCopied: // clients have the data
		return backupstate.State{}, false
	case in.Claim == nil || in.Claim.UID == uid && in.Claim.DeletionTimestamp != nil:
		if in.isPull() {
			return backupstate.ScratchDeleted(name), true
		}
		return backupstate.TargetDeleted(name), true
	case in.Claim.UID != uid:
		if in.isPull() {
			return backupstate.ScratchReplaced(name), true
		}
		return backupstate.TargetReplaced(name), true
	default:
		return backupstate.State{}, false
	}
}

func superviseNode(in *input) decision {
	s := &in.Backup.Status
	deadline, end := startingDeadline(in), backupstate.NotStarted(s.NodeName, in.Limits.Starting)
	if s.Phase == backupv1.BackupCopying {
		deadline, end = in.Seen.ProgressSince.Add(in.Limits.Stalled), backupstate.CopyStalled(s.NodeName, in.Limits.Stalled)
	}
	if deadlinePassed(in, deadline) {
		return copyFailed(in, end)
	}
	d := toStatus(in, change{phase: s.Phase, state: in.currentState(), deadline: recordedDeadline(in, deadline, in.Limits.Stalled)})
	d.Wake = deadline
	return d
}

func startingDeadline(in *input) time.Time {
	return deadlineOr(in, in.Seen.PhaseSince, in.Limits.Starting)
}

// recordedDeadline returns the deadline to show in status. It keeps the recorded one while that is off by no more than a
// third of limit, so that not every progress report costs a second write.
func recordedDeadline(in *input, deadline time.Time, limit time.Duration) time.Time {
	s := &in.Backup.Status
	if s.PhaseDeadline == nil {
		return deadline
	}
	if diff := deadline.Sub(s.PhaseDeadline.Time).Abs(); diff <= limit/3 {
		return s.PhaseDeadline.Time
	}
	return deadline
}

func copyFailed(in *input, end backupstate.State) decision {
	return toStatus(in, change{phase: backupv1.BackupCopyFailed, state: end})
}

// guestEnd says how the guest ended, as far as the objects show.
func guestEnd(in *input) backupstate.State {
	machine := in.Backup.Status.SourceName
	if in.Instance == nil && in.VM == nil {
		return backupstate.MachineDeleted(machine)
	}
	end, _ := backupstate.GuestEnd(machine, in.Backup.Status.InstanceUID, in.Instance)
	return end
}

// earlierTime returns the earlier of two times. Zero means never.
func earlierTime(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
