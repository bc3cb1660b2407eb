package instance

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/backupstate"
	"github.com/varvebackup/varve/internal/handler/launcherclient"
	"github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/layout"
)

// gatherInput reads what the decision needs, and returns the backup that delays a stop, or nil.
func (r *Reconciler) gatherInput(ctx context.Context, vmi *kubevirtv1.VirtualMachineInstance, l *launcherclient.Client) (input, *backupv1.VirtualMachineBackup, error) {
	seen := l.Snapshot()
	in := input{
		Now: r.Clock.Now(), Instance: vmi, State: seen.State, Answers: seen.Err == nil,
		StopWaitsForBackup: r.StopWaitsForBackup,
	}
	var err error
	if seen.State.GetPhase() == launcherpb.State_ENDED {
		in.Unreported, err = r.hasUnreportedBackup(ctx, vmi)
		return in, nil, err
	}
	if vmi.DeletionTimestamp.IsZero() {
		return in, nil, nil
	}
	holder, err := r.findHolder(ctx, vmi)
	if holder != nil {
		in.Holder = holder.Name
	}
	return in, holder, err
}

// findHolder returns the running backup that holds the instance, or nil. It reads live: a backup that has ended must
// not delay a stop, and one that runs must not be overlooked.
func (r *Reconciler) findHolder(ctx context.Context, vmi *kubevirtv1.VirtualMachineInstance) (*backupv1.VirtualMachineBackup, error) {
	tracking := vmi.Status.ChangedBlockTracking
	if tracking == nil || tracking.BackupStatus == nil || tracking.BackupStatus.BackupName == "" {
		return nil, nil
	}
	b := &backupv1.VirtualMachineBackup{}
	err := r.Live.Get(ctx, types.NamespacedName{Namespace: vmi.Namespace, Name: tracking.BackupStatus.BackupName}, b)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the backup that holds the instance: %w", err)
	}
	if lock := tracking.BackupStatus.BackupMsg; lock != nil && *lock != layout.BackupLock(b.UID) {
		return nil, nil // a later backup of the same name
	}
	if !backupstate.FindPhase(b.Status.Phase).NeedsGuest {
		// The data is on the target or never will be. What is left to do does not need the guest.
		return nil, nil
	}
	return b, nil
}

// hasUnreportedBackup reports whether the outcome of a backup of the instance still has to be read from the launcher.
func (r *Reconciler) hasUnreportedBackup(ctx context.Context, vmi *kubevirtv1.VirtualMachineInstance) (bool, error) {
	var all backupv1.VirtualMachineBackupList
	if err := r.Cached.List(ctx, &all, client.InNamespace(vmi.Namespace)); err != nil {
		return false, fmt.Errorf("list backups: %w", err)
	}
	for i := range all.Items {
		s := &all.Items[i].Status
		if p := backupstate.FindPhase(s.Phase); s.InstanceUID == vmi.UID && p.Owner == backupstate.Handler && p.NeedsGuest {
			return true, nil
		}
	}
	return false, nil
}

// applyDecision asks the launcher for what was decided. An error, such as a launcher that does not answer, is retried.
func (r *Reconciler) applyDecision(ctx context.Context, vmi *kubevirtv1.VirtualMachineInstance, l *launcherclient.Client, d decision, holder *backupv1.VirtualMachineBackup) (*problem, error) {
	switch d.Action {
	case start:
		return r.startGuest(ctx, vmi, l)
	case shutdown:
		return nil, r.stopGuest(ctx, vmi, l, d, holder)
	case finish:
		return nil, r.finishArrival(ctx, vmi, l)
	case nothing, hold, exit:
	}
	return nil, nil
}

func (r *Reconciler) stopGuest(ctx context.Context, vmi *kubevirtv1.VirtualMachineInstance, l *launcherclient.Client, d decision, holder *backupv1.VirtualMachineBackup) error {
	if d.Abort && holder != nil {
		if _, err := l.RPC().AbortBackup(ctx, &launcherpb.AbortBackupRequest{Uid: string(holder.UID)}); err != nil {
			return fmt.Errorf("abort backup %s: %w", holder.Name, err)
		}
	}
	if _, err := l.RPC().Shutdown(ctx, &launcherpb.ShutdownRequest{GraceSeconds: d.Grace}); err != nil {
		return fmt.Errorf("shut the guest down: %w", err)
	}
	r.Events.Eventf(vmi, nil, corev1.EventTypeNormal, "ShuttingDown", "Stop", "The guest was asked to shut down; it is killed after %d seconds.", d.Grace)
	return nil
}
