package kubevirtbackup

import (
	"context"
	"fmt"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	"github.com/varvebackup/varve/internal/reconcile"
	"github.com/varvebackup/varve/internal/tracking"
)

// trackerCounter warns of a new tracker if its machine then has more of them than the claim with the overlays has room
// for bitmaps. Nothing refuses it: the claim may be larger than it has to be.
type trackerCounter struct{ access }

func setupTrackerCount(mgr ctrl.Manager, opts Options, a access) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("backup-tracker-count"+opts.ControllerSuffix).
		For(&backupv1.VirtualMachineBackupTracker{}, builder.WithPredicates(newObjects())).
		WithOptions(reconcile.Options(reconcile.ControllerWorkers)).
		Complete(&trackerCounter{access: a})
}

// newObjects lets objects pass that are created while the controller runs, so that a restart does not repeat what was
// said of all others.
func newObjects() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc:  func(e event.CreateEvent) bool { return !e.IsInInitialList },
		UpdateFunc:  func(event.UpdateEvent) bool { return false },
		DeleteFunc:  func(event.DeleteEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

// Reconcile looks at a new tracker.
func (r *trackerCounter) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	t, err := reconcile.Find(ctx, r.cached, req.NamespacedName, &backupv1.VirtualMachineBackupTracker{})
	if err != nil || t == nil {
		return ctrl.Result{}, err
	}
	machine := t.Spec.Source.Name
	var list backupv1.VirtualMachineBackupTrackerList
	if err := r.cached.List(ctx, &list, client.InNamespace(t.Namespace), client.MatchingFields{trackersByMachine: machine}, client.UnsafeDisableDeepCopy); err != nil {
		return ctrl.Result{}, fmt.Errorf("list the trackers of %s/%s: %w", t.Namespace, machine, err)
	}
	if n := len(list.Items); n > tracking.BitmapsPerDisk {
		r.events.Eventf(t, nil, warning, EventTooManyTrackers, "Count",
			"VirtualMachine %s has %d trackers, and the claim with its overlays has room for the bitmaps of %d: backups become full, and the guest may stop when the claim is full. Delete trackers that no backup needs.",
			machine, n, tracking.BitmapsPerDisk)
	}
	return ctrl.Result{}, nil
}
