package utilityvolume

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/controller/pace"
)

// Options are what Setup needs beside the manager.
type Options struct {
	// Image is what attachment pods are made of.
	Image Image
	// Clock tells the time. Default: the machine's.
	Clock clock.PassiveClock
}

// Setup adds the controller to mgr.
func Setup(mgr ctrl.Manager, opts Options) error {
	if opts.Clock == nil {
		opts.Clock = clock.RealClock{}
	}
	r := &reconciler{Options: opts, client: mgr.GetClient(), live: mgr.GetAPIReader(), events: mgr.GetEventRecorder("varve-utilityvolume")}
	return ctrl.NewControllerManagedBy(mgr).
		Named("utilityvolume").
		For(&kubevirtv1.VirtualMachineInstance{}).
		Owns(&corev1.Pod{}).
		Watches(&corev1.PersistentVolumeClaim{}, handler.EnqueueRequestsFromMapFunc(r.usersOf)).
		Watches(&backupv1.VirtualMachineBackup{}, handler.EnqueueRequestsFromMapFunc(ofBackup)).
		WithOptions(pace.Options()).
		Complete(r)
}

// ofBackup is the instance that a backup holds.
func ofBackup(_ context.Context, o client.Object) []reconcile.Request {
	backup, ok := o.(*backupv1.VirtualMachineBackup)
	if !ok || backup.Status.SourceName == "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: backup.Namespace, Name: backup.Status.SourceName}}}
}

// usersOf are the instances with a utility volume on a claim.
func (r *reconciler) usersOf(ctx context.Context, claim client.Object) []reconcile.Request {
	list := &kubevirtv1.VirtualMachineInstanceList{}
	if err := r.client.List(ctx, list, client.InNamespace(claim.GetNamespace())); err != nil {
		log.FromContext(ctx).Error(err, "list instances", "claim", client.ObjectKeyFromObject(claim))
		return nil
	}
	var requests []reconcile.Request
	for i := range list.Items {
		instance := &list.Items[i]
		if slices.ContainsFunc(instance.Spec.UtilityVolumes, func(v kubevirtv1.UtilityVolume) bool { return v.ClaimName == claim.GetName() }) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(instance)})
		}
	}
	return requests
}

// reconciler applies what Decide says.
type reconciler struct {
	Options
	client client.Client
	live   client.Reader
	events events.EventRecorder
}
