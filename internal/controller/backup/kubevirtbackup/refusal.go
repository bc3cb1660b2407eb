package kubevirtbackup

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	"github.com/varvebackup/varve/internal/backupstate"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/reconcile"
)

// handleRefusal shows the user that the API server refused a step, and returns the error so that the queue retries
// the step. The retries end at the phase's deadline, which decide checks before it asks for the step again.
func (r *reconciler) handleRefusal(ctx context.Context, in *input, d decision, err error) (ctrl.Result, error) {
	err = fmt.Errorf("backup %s/%s: %s: %w", in.Backup.Namespace, in.Backup.Name, d.Step, err)
	if !reconcile.IsRefusal(err) {
		return retryLostRace(err)
	}
	r.watchdog.recordAttempt(in.Backup.UID, d.Step, err)
	report := reportRefusal(in, d, err)
	if report.Step == stepNone {
		r.events.Eventf(in.Backup, relatedMachine(in), warning, EventRefused, "Retry", "%s", refusalState(in, d, err).Message)
		return ctrl.Result{}, err
	}
	if werr := r.applyStep(ctx, in, report); werr != nil && !apierrors.IsConflict(werr) && !apierrors.IsNotFound(werr) {
		err = errors.Join(err, werr)
	}
	return ctrl.Result{}, err
}

// reportRefusal returns the status write that shows the refusal of d. It returns none if status shows it already,
// and none in the phases whose reason and message are those of the backup's end.
func reportRefusal(in *input, d decision, err error) decision {
	c := change{phase: in.Backup.Status.Phase, state: refusalState(in, d, err)}
	switch c.phase {
	case "", backupv1.BackupPending:
		c.phase, c.deadline = backupv1.BackupPending, pendingDeadline(in)
		c.more = func(s *backupv1.VirtualMachineBackupStatus) {
			s.SourceName, s.NodeName, s.PlaceWait = in.machineName(), "", endPlaceWait(in)
		}
	case backupv1.BackupAttaching:
		c.deadline = deadlineOr(in, in.Now, in.Limits.Attaching)
	case backupv1.BackupCopied:
		c.deadline = in.Seen.PhaseSince.Add(in.Limits.Pruning)
	default:
		return decision{}
	}
	return toStatus(in, c)
}

func refusalState(in *input, d decision, err error) backupstate.State {
	what := map[step]string{
		stepAddFinalizer:       "Adding the finalizer to the backup",
		stepRemoveFinalizer:    "Removing the finalizer from the backup",
		stepProtectTracker:     "Adding the finalizer to VirtualMachineBackupTracker " + in.Backup.Spec.TrackerName(),
		stepAttach:             fmt.Sprintf("Attaching PersistentVolumeClaim %s to VirtualMachineInstance %s", in.Backup.Spec.PVCName, in.machineName()),
		stepDetach:             fmt.Sprintf("Detaching PersistentVolumeClaim %s from VirtualMachineInstance %s", in.Backup.Spec.PVCName, in.machineName()),
		stepLock:               "Locking VirtualMachineInstance " + in.machineName(),
		stepUnlock:             "Unlocking VirtualMachineInstance " + in.machineName(),
		stepMoveTracker:        "Moving VirtualMachineBackupTracker " + in.Backup.Spec.TrackerName(),
		stepCreateTunnelSecret: "Creating Secret " + in.tunnelSecretName(),
		stepDeleteTunnelSecret: "Deleting Secret " + in.tunnelSecretName(),
		stepCreateExport:       "Creating VirtualMachineExport " + layout.BackupExport(in.Backup.Name),
		stepExtendExport:       "Extending VirtualMachineExport " + layout.BackupExport(in.Backup.Name),
		stepDeleteExport:       "Deleting VirtualMachineExport " + layout.BackupExport(in.Backup.Name),
		stepStatus:             "Writing the backup's status",
	}[d.Step]
	return backupstate.RequestRefused(what, rootCause(err))
}

// unlockGivenUp reports whether the API server has refused to unlock the instance until the deadline. The backup
// then ends without unlocking. lockReconciler removes the lock of the ended backup as soon as the API server allows
// it.
func unlockGivenUp(in *input, deadline time.Time) bool {
	return in.Seen.UnlockRefused != "" && deadlinePassed(in, deadline)
}

// stillLocked returns what a backup adds to its last message if its lock could not be removed.
func stillLocked(in *input) string {
	if !in.ownsLock() {
		return ""
	}
	return backupstate.StillLocked(in.machineName(), in.Seen.UnlockRefused)
}

// rootCause returns the API server's own error, without what this package wrapped around it.
func rootCause(err error) error {
	var answer *apierrors.StatusError
	if errors.As(err, &answer) {
		return answer
	}
	return err
}

// lastMessage says what a backup that gives up was waiting for.
func lastMessage(in *input, waiting string) string {
	if in.Backup.Status.Reason == backupv1.ReasonRequestRefused {
		return in.Backup.Status.Message
	}
	return waiting
}
