package migration

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/controller/machine/virtualmachineinstance"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/reconcile"
)

// Options are what Setup needs besides the manager.
type Options struct {
	// Configuration is the KubeVirt object, which has the limits.
	Configuration types.NamespacedName
	// Images are what target pods and the pods that bring tokens are made of.
	Images virtualmachineinstance.Images
	// Clock tells the time. Default: the machine's.
	Clock clock.PassiveClock
}

// Setup adds the controller to mgr.
func Setup(mgr ctrl.Manager, opts Options) error {
	if opts.Clock == nil {
		opts.Clock = clock.RealClock{}
	}
	r := &reconciler{
		Options: opts, cached: mgr.GetClient(), live: mgr.GetAPIReader(),
		events: reconcile.ShortenNotes(mgr.GetEventRecorder("varve-migration")),
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("migration").
		For(&kubevirtv1.VirtualMachineInstanceMigration{}).
		Watches(&kubevirtv1.VirtualMachineInstance{}, handler.EnqueueRequestsFromMapFunc(r.migrationsOfInstance)).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(r.migrationOfPod)).
		WithOptions(reconcile.Options(1)).
		Complete(r)
}

// reconciler applies what decide says.
type reconciler struct {
	Options
	cached client.Client
	live   client.Reader
	events events.EventRecorder
}

// migrationsOfInstance maps an instance to its migrations that have not ended.
func (r *reconciler) migrationsOfInstance(ctx context.Context, o client.Object) []ctrl.Request {
	return r.listRequests(ctx, o.GetNamespace(),
		func(m *kubevirtv1.VirtualMachineInstanceMigration) bool { return m.Spec.VMIName == o.GetName() })
}

// migrationOfPod maps a pod of a migration to the migration.
func (r *reconciler) migrationOfPod(ctx context.Context, o client.Object) []ctrl.Request {
	uid := types.UID(o.GetLabels()[layout.LabelMigrationJob])
	if uid == "" {
		return nil
	}
	return r.listRequests(ctx, o.GetNamespace(),
		func(m *kubevirtv1.VirtualMachineInstanceMigration) bool { return m.UID == uid })
}

func (r *reconciler) listRequests(
	ctx context.Context, namespace string, wanted func(*kubevirtv1.VirtualMachineInstanceMigration) bool,
) []ctrl.Request {
	list := &kubevirtv1.VirtualMachineInstanceMigrationList{}
	if err := r.cached.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return nil // the cache does not fail once it runs
	}
	var all []ctrl.Request
	for i := range list.Items {
		if m := &list.Items[i]; !m.Status.Phase.Final() && wanted(m) {
			all = append(all, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(m)})
		}
	}
	return all
}
