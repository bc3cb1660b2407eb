package instance

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/source"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/handler/turns"
	"github.com/varvebackup/varve/internal/reconcile"
)

// Setup adds the reconciler and its sweeper to mgr, whose cache must have only this node's instances and backups.
func (r *Reconciler) Setup(mgr ctrl.Manager) error {
	// What matters is only that a tracker was deleted, not what was in it.
	trackers := &metav1.PartialObjectMetadata{}
	trackers.SetGroupVersionKind(backupv1.GroupVersion.WithKind("VirtualMachineBackupTracker"))
	deleted := predicate.Funcs{
		CreateFunc:  func(event.CreateEvent) bool { return false },
		UpdateFunc:  func(event.UpdateEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
	err := ctrl.NewControllerManagedBy(mgr).Named("handler-instance").
		For(&kubevirtv1.VirtualMachineInstance{}).
		Watches(&backupv1.VirtualMachineBackup{}, handler.EnqueueRequestsFromMapFunc(ofBackup)).
		WatchesMetadata(trackers, handler.EnqueueRequestsFromMapFunc(r.afterTracker), builder.WithPredicates(deleted)).
		WatchesRawSource(source.Func(r.watchLaunchers)).
		WithOptions(reconcile.Options(reconcile.HandlerWorkers)).
		Complete(turns.New(reconcile.HandlerPlaces).Reconciler(r))
	if err != nil {
		return err
	}
	return mgr.Add(r)
}

func ofBackup(_ context.Context, obj client.Object) []ctrl.Request {
	b, ok := obj.(*backupv1.VirtualMachineBackup)
	if !ok || b.Status.SourceName == "" {
		return nil
	}
	return []ctrl.Request{{NamespacedName: types.NamespacedName{Namespace: b.Namespace, Name: b.Status.SourceName}}}
}

// afterTracker triggers a review of every instance in the namespace, because the metadata does not say whose
// tracker it was.
func (r *Reconciler) afterTracker(ctx context.Context, obj client.Object) []ctrl.Request {
	var all kubevirtv1.VirtualMachineInstanceList
	if err := r.Cached.List(ctx, &all, client.InNamespace(obj.GetNamespace())); err != nil {
		r.Log.Error(err, "list instances after a tracker was deleted; their checkpoints are deleted at the next restart")
		return nil
	}
	var requests []ctrl.Request
	for i := range all.Items {
		for pod := range all.Items[i].Status.ActivePods {
			r.setReviewed(pod, false)
		}
		requests = append(requests, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(&all.Items[i])})
	}
	return requests
}

// watchLaunchers wakes the reconciler whenever a launcher reports something new.
func (r *Reconciler) watchLaunchers(_ context.Context, queue workqueue.TypedRateLimitingInterface[ctrl.Request]) error {
	r.Launchers.Subscribe(func(instance types.NamespacedName) { queue.Add(ctrl.Request{NamespacedName: instance}) })
	return nil
}
