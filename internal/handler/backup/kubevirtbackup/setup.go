package kubevirtbackup

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/source"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/handler/turns"
	"github.com/varvebackup/varve/internal/reconcile"
)

// Setup adds the reconciler to mgr, whose cache must have only this node's instances and backups.
func (r *Reconciler) Setup(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).Named("handler-backup").
		For(&backupv1.VirtualMachineBackup{}).
		Watches(&kubevirtv1.VirtualMachineInstance{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, obj client.Object) []ctrl.Request {
			return r.requestsForInstance(ctx, client.ObjectKeyFromObject(obj))
		})).
		WatchesRawSource(source.Func(r.watchLaunchers)).
		WithOptions(reconcile.Options(reconcile.HandlerWorkers)).
		Complete(turns.New(reconcile.HandlerPlaces).Reconciler(r))
}

// requestsForInstance returns requests for the instance's backups that are in one of the handler's phases.
func (r *Reconciler) requestsForInstance(ctx context.Context, instance types.NamespacedName) []ctrl.Request {
	var all backupv1.VirtualMachineBackupList
	if err := r.Cached.List(ctx, &all, client.InNamespace(instance.Namespace)); err != nil {
		return nil // The cache fails only when the manager stops.
	}
	var requests []ctrl.Request
	for i := range all.Items {
		if s := &all.Items[i].Status; s.SourceName == instance.Name && endedByHandler(s.Phase) {
			requests = append(requests, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(&all.Items[i])})
		}
	}
	return requests
}

// watchLaunchers wakes the reconciler whenever a launcher reports something new.
func (r *Reconciler) watchLaunchers(ctx context.Context, queue workqueue.TypedRateLimitingInterface[ctrl.Request]) error {
	r.Launchers.Subscribe(func(instance types.NamespacedName) {
		for _, request := range r.requestsForInstance(ctx, instance) {
			queue.Add(request)
		}
	})
	return nil
}
