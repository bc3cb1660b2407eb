package virtualmachineinstance

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/reconcile"
)

// Options are what Setup needs besides the manager.
type Options struct {
	// Configuration is the KubeVirt object, which says whether guests are emulated.
	Configuration types.NamespacedName
	// Images are what launcher pods are made of.
	Images Images
	// StopWaitsForBackup is how long a handler may delay a stop for a running backup. It is the handlers' option of
	// the same name. Default: layout.StopWaitsForBackup.
	StopWaitsForBackup time.Duration
	// Clock tells the time. Default: the machine's.
	Clock clock.PassiveClock
}

// Setup adds the controller to mgr.
func Setup(mgr ctrl.Manager, opts Options) error {
	if opts.Clock == nil {
		opts.Clock = clock.RealClock{}
	}
	if opts.StopWaitsForBackup == 0 {
		opts.StopWaitsForBackup = layout.StopWaitsForBackup
	}
	r := &reconciler{Options: opts, cached: mgr.GetClient(), live: mgr.GetAPIReader(), events: reconcile.ShortenNotes(mgr.GetEventRecorder("varve-virtualmachineinstance"))}
	return ctrl.NewControllerManagedBy(mgr).
		Named("virtualmachineinstance").
		For(&kubevirtv1.VirtualMachineInstance{}).
		// Launcher pods and attachment pods.
		Owns(&corev1.Pod{}).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(requestsForLauncher)).
		Watches(&kubevirtv1.VirtualMachineInstanceMigration{}, handler.EnqueueRequestsFromMapFunc(instanceOfMigration)).
		Watches(&corev1.PersistentVolumeClaim{}, handler.EnqueueRequestsFromMapFunc(reconcile.InstancesOfClaim(r.cached, waitsFor))).
		WithOptions(reconcile.Options(reconcile.ControllerWorkers)).
		Complete(r)
}

// reconciler applies what decide says.
type reconciler struct {
	Options
	cached client.Client
	live   client.Reader
	events events.EventRecorder
}

// instanceOfMigration maps a migration to its instance, whose pods depend on what becomes of it.
func instanceOfMigration(_ context.Context, o client.Object) []ctrl.Request {
	m, ok := o.(*kubevirtv1.VirtualMachineInstanceMigration)
	if !ok || m.Spec.VMIName == "" {
		return nil
	}
	return []ctrl.Request{{NamespacedName: types.NamespacedName{Namespace: m.Namespace, Name: m.Spec.VMIName}}}
}

// waitsFor reports whether a claim may keep the instance waiting.
func waitsFor(instance *kubevirtv1.VirtualMachineInstance, claim string) bool {
	return !handedOver(instance.Status.Phase) && slices.Contains(claimNames(instance), claim)
}

// claimNames returns the names of the claims that the launcher pod mounts. Of two names of state claims, it may mount one.
func claimNames(instance *kubevirtv1.VirtualMachineInstance) []string {
	var names []string
	for _, v := range instance.Spec.Volumes {
		names = append(names, v.PersistentVolumeClaim.ClaimName)
	}
	if Tracked(instance) {
		names = append(names, layout.StatePVCs(instance.Name)...)
	}
	return names
}
