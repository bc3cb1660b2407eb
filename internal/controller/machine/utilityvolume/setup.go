package utilityvolume

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/controller/machine/holdpod"
	"github.com/varvebackup/varve/internal/reconcile"
)

// Options are what Setup needs besides the manager.
type Options struct {
	// Image is what attachment pods are made of.
	Image holdpod.Image
	// Clock tells the time. Default: the machine's.
	Clock clock.PassiveClock
}

// Setup adds the controller to mgr.
func Setup(mgr ctrl.Manager, opts Options) error {
	if opts.Clock == nil {
		opts.Clock = clock.RealClock{}
	}
	r := &reconciler{Options: opts, cached: mgr.GetClient(), live: mgr.GetAPIReader(), events: reconcile.ShortenNotes(mgr.GetEventRecorder("varve-utilityvolume"))}
	return ctrl.NewControllerManagedBy(mgr).
		Named("utilityvolume").
		For(&kubevirtv1.VirtualMachineInstance{}).
		Owns(&corev1.Pod{}).
		Watches(&corev1.PersistentVolumeClaim{}, handler.EnqueueRequestsFromMapFunc(reconcile.InstancesOfClaim(r.cached, usesClaim))).
		Watches(&backupv1.VirtualMachineBackup{}, handler.EnqueueRequestsFromMapFunc(reconcile.InstanceOfBackup)).
		WithOptions(reconcile.Options(reconcile.ControllerWorkers)).
		Complete(r)
}

// usesClaim reports whether the instance has a utility volume on the claim.
func usesClaim(instance *kubevirtv1.VirtualMachineInstance, claim string) bool {
	return slices.ContainsFunc(instance.Spec.UtilityVolumes, func(v kubevirtv1.UtilityVolume) bool { return v.ClaimName == claim })
}

// reconciler applies what decide says.
type reconciler struct {
	Options
	cached client.Client
	live   client.Reader
	events events.EventRecorder
}
