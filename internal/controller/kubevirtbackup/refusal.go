package kubevirtbackup

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	"github.com/varvebackup/varve/internal/reconcile"
)

// refusedStep shows the user that the API server refused a step, and returns the error so that the queue retries
// the step. The retries end at the phase's deadline, which decide checks before it asks for the step again.
func (r *reconciler) refusedStep(ctx context.Context, in *Input, d Decision, err error) (ctrl.Result, error) {
	err = fmt.Errorf("backup %s/%s: %s: %w", in.Backup.Namespace, in.Backup.Name, d.Step, err)
	if !reconcile.IsRefusal(err) {
		return retry(err)
	}
	r.watchdog.tried(in.Backup.UID, d.Step, err)
	report := reportRefusal(in, d, err)
	if report.Step == StepNone {
		r.events.Eventf(in.Backup, related(in), warning, EventRefused, "Retry", "%s", refusalMessage(in, d, err))
		return ctrl.Result{}, err
	}
	if werr := r.apply(ctx, in, report); werr != nil && !apierrors.IsConflict(werr) && !apierrors.IsNotFound(werr) {
		err = errors.Join(err, werr)
	}
	return ctrl.Result{}, err
}

// reportRefusal returns the status write that shows the refusal of d. It returns none if status shows it already,
// and none in the phases whose reason and message are those of the backup's end.
func reportRefusal(in *Input, d Decision, err error) Decision {
	c := change{phase: in.Backup.Status.Phase, reason: backupv1.ReasonRequestRefused, message: refusalMessage(in, d, err)}
	switch c.phase {
	case "", backupv1.BackupPending:
		c.phase, c.deadline = backupv1.BackupPending, pendingDeadline(in)
		c.more = func(s *backupv1.VirtualMachineBackupStatus) { s.SourceName = in.machine() }
	case backupv1.BackupAttaching:
		c.deadline = deadlineOr(in, in.Now, in.Limits.Attaching)
	case backupv1.BackupCopied:
		c.deadline = in.Seen.PhaseSince.Add(in.Limits.Pruning)
	default:
		return Decision{}
	}
	return write(in, c)
}

func refusalMessage(in *Input, d Decision, err error) string {
	what := map[Step]string{
		StepHold:           "Adding the finalizer to the backup",
		StepLetGo:          "Removing the finalizer from the backup",
		StepProtectTracker: "Adding the finalizer to VirtualMachineBackupTracker " + in.Backup.Spec.BackupTracker,
		StepAttach:         fmt.Sprintf("Attaching PersistentVolumeClaim %s to VirtualMachineInstance %s", in.Backup.Spec.PVCName, in.machine()),
		StepDetach:         fmt.Sprintf("Detaching PersistentVolumeClaim %s from VirtualMachineInstance %s", in.Backup.Spec.PVCName, in.machine()),
		StepLock:           "Locking VirtualMachineInstance " + in.machine(),
		StepUnlock:         "Unlocking VirtualMachineInstance " + in.machine(),
		StepMoveTracker:    "Moving VirtualMachineBackupTracker " + in.Backup.Spec.BackupTracker,
		StepStatus:         "Writing the backup's status",
	}[d.Step]
	return fmt.Sprintf("%s was refused, and is tried again: %v", what, rootCause(err))
}

// unlockGivenUp reports whether the API server has refused to unlock the instance until the deadline. The backup
// then ends without unlocking. lockReconciler removes the lock of the ended backup as soon as the API server allows
// it.
func unlockGivenUp(in *Input, deadline time.Time) bool {
	return in.Seen.UnlockRefused != "" && passed(in, deadline)
}

// stillLocked returns what a backup adds to its last message if its lock could not be removed.
func stillLocked(in *Input) string {
	if !in.ownsLock() {
		return ""
	}
	return fmt.Sprintf(" VirtualMachineInstance %s is still locked, and its other backups wait, until the API server allows the unlocking: %s",
		in.machine(), in.Seen.UnlockRefused)
}

// rootCause returns the API server's own error, without what this package wrapped around it.
func rootCause(err error) error {
	var answer *apierrors.StatusError
	if errors.As(err, &answer) {
		return answer
	}
	return err
}

// lastState says what a backup that gives up was waiting for.
func lastState(in *Input, waiting string) string {
	if in.Backup.Status.Reason == backupv1.ReasonRequestRefused {
		return in.Backup.Status.Message
	}
	return waiting
}
