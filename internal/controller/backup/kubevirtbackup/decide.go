package kubevirtbackup

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	exportv1 "github.com/varvebackup/varve/api/export/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/backupstate"
	"github.com/varvebackup/varve/internal/layout"
)

// step is the one write that a decision asks for.
type step string

// Steps.
const (
	// stepNone: the objects are as they should be.
	stepNone step = ""
	// stepAddFinalizer adds the finalizer to the backup.
	stepAddFinalizer step = "Hold"
	// stepRemoveFinalizer removes the finalizer from a backup that has ended, and labels the backup as ended.
	stepRemoveFinalizer step = "LetGo"
	// stepProtectTracker adds the finalizer to the tracker.
	stepProtectTracker step = "ProtectTracker"
	// stepAttach adds decision.Volume to the instance.
	stepAttach step = "Attach"
	// stepDetach removes decision.Volume from the instance.
	stepDetach step = "Detach"
	// stepLock first records Lock.StartTimestamp on the tracker, if the lock names a checkpoint, and then puts
	// decision.Lock on the instance.
	stepLock step = "Lock"
	// stepUnlock removes the lock from the instance.
	stepUnlock step = "Unlock"
	// stepMoveTracker makes decision.Checkpoint the tracker's latest checkpoint and clears the tracker's list of
	// discarded disks.
	stepMoveTracker step = "MoveTracker"
	// stepCreateTunnelSecret creates decision.Secret, and stepDeleteTunnelSecret deletes it.
	stepCreateTunnelSecret step = "CreateTunnelSecret"
	stepDeleteTunnelSecret step = "DeleteTunnelSecret"
	// stepCreateExport creates decision.Export, stepExtendExport gives the one that is there its time, and stepDeleteExport
	// deletes it.
	stepCreateExport step = "CreateExport"
	stepExtendExport step = "ExtendExport"
	stepDeleteExport step = "DeleteExport"
	// stepStatus writes decision.Status.
	stepStatus step = "Status"
)

// decision is the next step, and when to look again if no event comes.
type decision struct {
	Step   step
	Status *backupv1.VirtualMachineBackupStatus
	// UserActs says that the state in Status is one that somebody has to do something about.
	UserActs   bool
	Volume     *kubevirtv1.UtilityVolume
	Lock       *kubevirtv1.InstanceBackupStatus
	Checkpoint *backupv1.Checkpoint
	Secret     *corev1.Secret
	Export     *exportv1.VirtualMachineExport
	// Wake is when the present wait is over. If zero, only an event changes anything.
	Wake time.Time
}

// decide returns the one step that takes the backup further. It reads only in, and does not change it.
func decide(in *input) decision { return wakeAtExpiration(in, decidePhase(in)) }

func decidePhase(in *input) decision {
	switch in.Backup.Status.Phase {
	case "", backupv1.BackupPending:
		return decidePending(in)
	case backupv1.BackupAttaching:
		return decideAttaching(in)
	case backupv1.BackupStarting, backupv1.BackupCopying, backupv1.BackupServing:
		return decideOnNode(in)
	case backupv1.BackupCopied:
		return decideCopied(in)
	case backupv1.BackupCopyFailed:
		return toPruning(in, backupv1.BackupUnsuccessful, in.currentState())
	case backupv1.BackupPruning:
		return decidePruning(in)
	case backupv1.BackupPruned:
		return decidePruned(in)
	case backupv1.BackupDone, backupv1.BackupFailed:
		return decideFinal(in)
	default:
		// An unknown phase, for example after a downgrade: touch nothing rather than guess.
		return decision{}
	}
}

func decideFinal(in *input) decision {
	if in.hasFinalizer() || in.Backup.Labels[layout.LabelEnded] == "" {
		return decision{Step: stepRemoveFinalizer}
	}
	return decision{}
}

// change is how a status differs from the present one.
type change struct {
	phase backupv1.BackupPhase
	state backupstate.State
	// deadline is when to give up the phase. If zero, there is none.
	deadline time.Time
	more     func(*backupv1.VirtualMachineBackupStatus)
}

// toStatus returns the decision to change the status to c, or to wait for c.deadline if the status is c already.
func toStatus(in *input, c change) decision {
	s := in.Backup.Status.DeepCopy()
	s.Phase, s.Reason, s.Message = c.phase, c.state.Reason, c.state.Message
	s.PhaseDeadline, s.WaitsBehind = nil, ""
	if !c.deadline.IsZero() {
		// The API keeps whole seconds; rounding up never shortens a wait.
		s.PhaseDeadline = &metav1.Time{Time: c.deadline.Add(time.Second - time.Nanosecond).Truncate(time.Second)}
	}
	if c.more != nil {
		c.more(s)
	}
	setConditions(s, in.Backup.Generation, in.isBeingDeleted(), backupstate.EndsWell(in.Backup), in.Now)
	d := decision{Wake: c.deadline}
	if !equality.Semantic.DeepEqual(s, &in.Backup.Status) {
		d.Step, d.Status, d.UserActs = stepStatus, s, c.state.UserActs
	}
	return d
}

// toFinal ends a backup that holds nothing any more.
func toFinal(in *input, result backupv1.BackupResult, state backupstate.State) decision {
	phase := backupv1.BackupFailed
	if result == backupv1.BackupSucceeded {
		phase = backupv1.BackupDone
	}
	return toStatus(in, change{phase: phase, state: state, more: func(s *backupv1.VirtualMachineBackupStatus) {
		s.Result = result
		s.CompletionTimestamp = &metav1.Time{Time: in.Now.Truncate(time.Second)}
		s.PlaceWait = endPlaceWait(in)
		if in.isPull() {
			forgetEndpoints(s)
		}
	}})
}

// toPruning hands the backup to the node to clean up, with the result fixed.
func toPruning(in *input, result backupv1.BackupResult, state backupstate.State) decision {
	return toStatus(in, change{
		phase: backupv1.BackupPruning, state: state, deadline: in.Now.Add(in.Limits.Pruning),
		more: func(s *backupv1.VirtualMachineBackupStatus) { s.Result = result },
	})
}

// toPruned skips the node, which was never told of the backup.
func toPruned(in *input, state backupstate.State) decision {
	return toStatus(in, change{
		phase: backupv1.BackupPruned, state: state, deadline: in.Now.Add(in.Limits.Detaching),
		more: func(s *backupv1.VirtualMachineBackupStatus) { s.Result = backupv1.BackupUnsuccessful },
	})
}

// deadlineOr returns the phase's recorded deadline, or from+limit if none is recorded.
func deadlineOr(in *input, from time.Time, limit time.Duration) time.Time {
	if d := in.Backup.Status.PhaseDeadline; d != nil {
		return d.Time
	}
	return from.Add(limit)
}

func deadlinePassed(in *input, deadline time.Time) bool { return !in.Now.Before(deadline) }
