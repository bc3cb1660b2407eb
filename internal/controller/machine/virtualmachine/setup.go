package virtualmachine

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/reconcile"
)

// Finalizer keeps a VirtualMachine until its instance is gone. KubeVirt uses the same name.
const Finalizer = "kubevirt.io/virtualMachineControllerFinalize"

// Options are what Setup needs besides the manager.
type Options struct {
	// Configuration is the KubeVirt object that selects machines for changed block tracking.
	Configuration types.NamespacedName
	// Clock tells the time. Default: the machine's.
	Clock clock.PassiveClock
}

// startFailures counts instances that failed before their guest ran.
var startFailures = prometheus.NewCounter(prometheus.CounterOpts{
	Name: "varve_vm_start_failures_total",
	Help: "Instances that failed before their guest ran.",
})

func init() { metrics.Registry.MustRegister(startFailures) }

// Setup adds the controller to mgr.
func Setup(mgr ctrl.Manager, opts Options) error {
	if opts.Clock == nil {
		opts.Clock = clock.RealClock{}
	}
	r := &reconciler{
		cached:        mgr.GetClient(),
		live:          mgr.GetAPIReader(),
		events:        reconcile.ShortenNotes(mgr.GetEventRecorder("varve-virtualmachine")),
		clock:         opts.Clock,
		configuration: opts.Configuration,
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("virtualmachine").
		For(&kubevirtv1.VirtualMachine{}).
		// Watch by name, not by owner: when somebody else's instance of the same name goes away, it makes room.
		Watches(&kubevirtv1.VirtualMachineInstance{}, handler.EnqueueRequestsFromMapFunc(sameName)).
		WithOptions(reconcile.Options(reconcile.ControllerWorkers)).
		Complete(r)
}

func sameName(_ context.Context, o client.Object) []ctrl.Request {
	return []ctrl.Request{{NamespacedName: client.ObjectKeyFromObject(o)}}
}

// reconciler applies what decide says.
type reconciler struct {
	cached        client.Client
	live          client.Reader
	events        events.EventRecorder
	clock         clock.PassiveClock
	configuration types.NamespacedName
}
