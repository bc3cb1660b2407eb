package kubevirtbackup

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/reconcile"
)

// trackerReconciler releases the finalizer that a running backup puts on its tracker. If a tracker in use is
// deleted, it reports what the deletion waits for.
type trackerReconciler struct{ access }

func setupTrackers(mgr ctrl.Manager, opts Options, a access) error {
	r := &trackerReconciler{access: a}
	return ctrl.NewControllerManagedBy(mgr).
		Named("backup-tracker"+opts.ControllerSuffix).
		For(&backupv1.VirtualMachineBackupTracker{}).
		Watches(&backupv1.VirtualMachineBackup{}, handler.EnqueueRequestsFromMapFunc(requestsForTrackerOf), builder.WithPredicates(queueMoves())).
		WithOptions(reconcile.Options(reconcile.ControllerWorkers)).
		Complete(r)
}

func requestsForTrackerOf(_ context.Context, o client.Object) []ctrl.Request {
	b := o.(*backupv1.VirtualMachineBackup)
	name := b.Spec.TrackerName()
	if name == "" {
		return nil
	}
	return []ctrl.Request{{NamespacedName: types.NamespacedName{Namespace: b.Namespace, Name: name}}}
}

// userOfTracker returns the backup that uses the tracker now, or nil.
func userOfTracker(t *backupv1.VirtualMachineBackupTracker, backups []backupv1.VirtualMachineBackup) *backupv1.VirtualMachineBackup {
	for i := range backups {
		b := &backups[i]
		if !isWaiting(b) && !b.Status.Phase.Final() && b.Status.TrackerUID == t.UID {
			return b
		}
	}
	return nil
}

func (r *trackerReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	t, err := reconcile.Find(ctx, r.cached, req.NamespacedName, &backupv1.VirtualMachineBackupTracker{})
	if err != nil || t == nil || !controllerutil.ContainsFinalizer(t, layout.FinalizerTracker) {
		return ctrl.Result{}, err
	}
	user, err := r.findUser(ctx, t)
	if err != nil {
		return ctrl.Result{}, err
	}
	switch {
	case user == nil:
		err := patchObject(ctx, r.cached, t, func(t *backupv1.VirtualMachineBackupTracker) {
			controllerutil.RemoveFinalizer(t, layout.FinalizerTracker)
		})
		if err != nil {
			return retryLostRace(fmt.Errorf("release tracker %s: %w", req.NamespacedName, err))
		}
	case t.DeletionTimestamp != nil:
		r.events.Eventf(t, user, warning, EventTrackerHeld, "Hold",
			"The deleted tracker is kept until VirtualMachineBackup %s, which uses it, ends; delete that backup to abort it.", user.Name)
	}
	return ctrl.Result{}, nil
}

// findUser returns the backup that uses the tracker now, or nil. The cache lists the backups that name the tracker.
// Those that may have begun since are read live: such a backup must not lose its tracker.
func (r *trackerReconciler) findUser(ctx context.Context, t *backupv1.VirtualMachineBackupTracker) (*backupv1.VirtualMachineBackup, error) {
	named, err := r.listUnfinished(ctx, t.Namespace, byTracker, t.Name)
	if err != nil {
		return nil, err
	}
	if user := userOfTracker(t, named); user != nil {
		return user, nil // when it ends, it is looked for again
	}
	// Who waits behind another cannot have begun since, and thousands may.
	named = concernedByMachine(named)
	var present []backupv1.VirtualMachineBackup
	for i := range named {
		b, err := reconcile.Find(ctx, r.live, client.ObjectKeyFromObject(&named[i]), &backupv1.VirtualMachineBackup{})
		if err != nil {
			return nil, err
		}
		if b != nil {
			present = append(present, *b)
		}
	}
	return userOfTracker(t, present), nil
}
