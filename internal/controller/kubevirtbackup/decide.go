package kubevirtbackup

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/layout"
)

// Step is the one write that a decision asks for.
type Step string

// Steps.
const (
	// StepNone: the objects are as they should be.
	StepNone Step = ""
	// StepHold adds the finalizer to the backup.
	StepHold Step = "Hold"
	// StepLetGo removes the finalizer from a backup that has ended, and labels the backup as ended.
	StepLetGo Step = "LetGo"
	// StepProtectTracker adds the finalizer to the tracker.
	StepProtectTracker Step = "ProtectTracker"
	// StepAttach adds Decision.Volume to the instance.
	StepAttach Step = "Attach"
	// StepDetach removes Decision.Volume from the instance.
	StepDetach Step = "Detach"
	// StepLock first records Lock.StartTimestamp on the tracker, if the lock names a checkpoint, and then puts
	// Decision.Lock on the instance.
	StepLock Step = "Lock"
	// StepUnlock removes the lock from the instance.
	StepUnlock Step = "Unlock"
	// StepMoveTracker makes Decision.Checkpoint the tracker's latest checkpoint and clears the tracker's list of
	// discarded disks.
	StepMoveTracker Step = "MoveTracker"
	// StepStatus writes Decision.Status.
	StepStatus Step = "Status"
)

// Decision is the next step, and when to look again if no event comes.
type Decision struct {
	Step       Step
	Status     *backupv1.VirtualMachineBackupStatus
	Volume     *kubevirtv1.UtilityVolume
	Lock       *kubevirtv1.InstanceBackupStatus
	Checkpoint *backupv1.Checkpoint
	// Wake is when the present wait is over. If zero, only an event changes anything.
	Wake time.Time
}

// decide returns the one step that takes the backup further. It reads only in, and does not change it.
func decide(in *Input) Decision {
	switch in.Backup.Status.Phase {
	case "", backupv1.BackupPending:
		return decidePending(in)
	case backupv1.BackupAttaching:
		return decideAttaching(in)
	case backupv1.BackupStarting, backupv1.BackupCopying:
		return decideOnNode(in)
	case backupv1.BackupCopied:
		return decideCopied(in)
	case backupv1.BackupCopyFailed:
		return toPruning(in, backupv1.BackupUnsuccessful, in.Backup.Status.Reason, in.Backup.Status.Message)
	case backupv1.BackupPruning:
		return decidePruning(in)
	case backupv1.BackupPruned:
		return decidePruned(in)
	case backupv1.BackupDone, backupv1.BackupFailed:
		return decideFinal(in)
	default:
		// An unknown phase, for example after a downgrade: touch nothing rather than guess.
		return Decision{}
	}
}

func decideFinal(in *Input) Decision {
	if in.finalized() || in.Backup.Labels[layout.LabelEnded] == "" {
		return Decision{Step: StepLetGo}
	}
	return Decision{}
}

// change is how a status differs from the present one.
type change struct {
	phase           backupv1.BackupPhase
	reason, message string
	// deadline is when to give up the phase. If zero, there is none.
	deadline time.Time
	more     func(*backupv1.VirtualMachineBackupStatus)
}

// write returns the decision to change the status to c, or to wait for c.deadline if the status is c already.
func write(in *Input, c change) Decision {
	s := in.Backup.Status.DeepCopy()
	s.Phase, s.Reason, s.Message = c.phase, c.reason, c.message
	s.PhaseDeadline = nil
	if !c.deadline.IsZero() {
		// The API keeps whole seconds; rounding up never shortens a wait.
		s.PhaseDeadline = &metav1.Time{Time: c.deadline.Add(time.Second - time.Nanosecond).Truncate(time.Second)}
	}
	if c.more != nil {
		c.more(s)
	}
	project(s, in.Backup.Generation, in.deleting(), in.Now)
	d := Decision{Wake: c.deadline}
	if !equality.Semantic.DeepEqual(s, &in.Backup.Status) {
		d.Step, d.Status = StepStatus, s
	}
	return d
}

// toFinal ends a backup that holds nothing any more.
func toFinal(in *Input, result backupv1.BackupResult, reason, message string) Decision {
	phase := backupv1.BackupFailed
	if result == backupv1.BackupSucceeded {
		phase = backupv1.BackupDone
	}
	return write(in, change{phase: phase, reason: reason, message: message, more: func(s *backupv1.VirtualMachineBackupStatus) {
		s.Result = result
		s.CompletionTimestamp = &metav1.Time{Time: in.Now.Truncate(time.Second)}
	}})
}

// toPruning hands the backup to the node to clean up, with the result fixed.
func toPruning(in *Input, result backupv1.BackupResult, reason, message string) Decision {
	return write(in, change{
		phase: backupv1.BackupPruning, reason: reason, message: message, deadline: in.Now.Add(in.Limits.Pruning),
		more: func(s *backupv1.VirtualMachineBackupStatus) { s.Result = result },
	})
}

// toPruned skips the node, which was never told of the backup.
func toPruned(in *Input, reason, message string) Decision {
	return write(in, change{
		phase: backupv1.BackupPruned, reason: reason, message: message, deadline: in.Now.Add(in.Limits.Detaching),
		more: func(s *backupv1.VirtualMachineBackupStatus) { s.Result = backupv1.BackupUnsuccessful },
	})
}

func aborted(in *Input) string {
	return fmt.Sprintf("VirtualMachineBackup %s was deleted before its data was complete.", in.Backup.Name)
}

// deadlineOr returns the phase's recorded deadline, or from+limit if none is recorded.
func deadlineOr(in *Input, from time.Time, limit time.Duration) time.Time {
	if d := in.Backup.Status.PhaseDeadline; d != nil {
		return d.Time
	}
	return from.Add(limit)
}

func passed(in *Input, deadline time.Time) bool { return !in.Now.Before(deadline) }
