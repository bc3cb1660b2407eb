package backup

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
)

// unfinishedIndex is a cache index of the backups that have not ended, so that a history of thousands costs nothing.
const unfinishedIndex = "varve.unfinished"

func indexUnfinished(ctx context.Context, mgr ctrl.Manager) error {
	return mgr.GetFieldIndexer().IndexField(ctx, &backupv1.VirtualMachineBackup{}, unfinishedIndex, func(o client.Object) []string {
		if o.(*backupv1.VirtualMachineBackup).Status.Phase.Final() {
			return nil
		}
		return []string{"true"}
	})
}

// unfinished returns requests for the backups of a namespace that have not ended and that match.
func (r *reconciler) unfinished(ctx context.Context, namespace string, match func(*backupv1.VirtualMachineBackup) bool) []reconcile.Request {
	var list backupv1.VirtualMachineBackupList
	if err := r.cached.List(ctx, &list, client.InNamespace(namespace), client.MatchingFields{unfinishedIndex: "true"}); err != nil {
		// The cache fails to list only when it is being stopped.
		log.FromContext(ctx).Error(err, "list unfinished backups", "namespace", namespace)
		return nil
	}
	var requests []reconcile.Request
	for i := range list.Items {
		if b := &list.Items[i]; match(b) {
			requests = append(requests, reconcile.Request{NamespacedName: types.NamespacedName{Namespace: b.Namespace, Name: b.Name}})
		}
	}
	return requests
}

// unfinishedIn wakes the backups that use a tracker. One that has another tracker of the same machine is woken by
// that other backup's own changes.
func (r *reconciler) unfinishedIn(ctx context.Context, o client.Object) []reconcile.Request {
	return r.unfinished(ctx, o.GetNamespace(), func(b *backupv1.VirtualMachineBackup) bool { return b.Spec.BackupTracker == o.GetName() })
}

// ofMachine wakes the backups of a machine; o is the machine or its instance, which has the same name.
func (r *reconciler) ofMachine(ctx context.Context, o client.Object) []reconcile.Request {
	return r.unfinished(ctx, o.GetNamespace(), func(b *backupv1.VirtualMachineBackup) bool { return r.machine(ctx, b) == o.GetName() })
}

// toClaim wakes the backups that go to a claim.
func (r *reconciler) toClaim(ctx context.Context, o client.Object) []reconcile.Request {
	return r.unfinished(ctx, o.GetNamespace(), func(b *backupv1.VirtualMachineBackup) bool { return b.Spec.PVCName == o.GetName() })
}

// sameMachine wakes the other backups of a backup's machine.
func (r *reconciler) sameMachine(ctx context.Context, o client.Object) []reconcile.Request {
	machine := r.machine(ctx, o.(*backupv1.VirtualMachineBackup))
	if machine == "" {
		return nil
	}
	return r.unfinished(ctx, o.GetNamespace(), func(b *backupv1.VirtualMachineBackup) bool {
		return b.Name != o.GetName() && r.machine(ctx, b) == machine
	})
}

func (r *reconciler) machine(ctx context.Context, b *backupv1.VirtualMachineBackup) string {
	var tracker *backupv1.VirtualMachineBackupTracker
	if name := b.Spec.BackupTracker; name != "" {
		t := &backupv1.VirtualMachineBackupTracker{}
		if err := r.cached.Get(ctx, types.NamespacedName{Namespace: b.Namespace, Name: name}, t); err == nil {
			tracker = t
		}
	}
	return machineOf(b, tracker)
}

// lineMoves passes what can change whose turn it is: not every progress report of a running backup.
func lineMoves() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		old, ok := e.ObjectOld.(*backupv1.VirtualMachineBackup)
		now, also := e.ObjectNew.(*backupv1.VirtualMachineBackup)
		return ok && also && (old.Status.Phase != now.Status.Phase || old.Status.Reason != now.Status.Reason ||
			(old.DeletionTimestamp == nil) != (now.DeletionTimestamp == nil))
	}}
}
