package virtualmachinesnapshot

import (
	"time"

	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	vmsnapshotv1 "github.com/varvebackup/varve/api/snapshot/v1beta1"
	"github.com/varvebackup/varve/internal/controller/child"
	"github.com/varvebackup/varve/internal/reconcile"
)

// Options are what Setup needs besides the manager.
type Options struct {
	// FreezePatience is how long a handler may take to say whether the guest is frozen. Default: 30 seconds, in which the
	// launcher has given up.
	FreezePatience time.Duration
	// ThawPatience is how long it may take to say whether the freeze lasted. Default: a minute.
	ThawPatience time.Duration
	// Clock tells the time. Default: the machine's.
	Clock clock.PassiveClock
	// ControllerSuffix distinguishes the controllers of two managers in one process, for example in tests.
	ControllerSuffix string
}

type reconciler struct {
	Options
	cached client.Client
	// live reads from the API server: what is decided here must not come from an older state.
	live     client.Reader
	events   events.EventRecorder
	children child.Maker
}

// Setup adds the controllers of snapshots and of their contents to mgr.
func Setup(mgr ctrl.Manager, o Options) error {
	if o.FreezePatience == 0 {
		o.FreezePatience = 30 * time.Second
	}
	if o.ThawPatience == 0 {
		o.ThawPatience = time.Minute
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	r := &reconciler{
		Options: o, cached: mgr.GetClient(), live: mgr.GetAPIReader(),
		events: reconcile.ShortenNotes(mgr.GetEventRecorder("varve-machine-snapshot")),
	}
	r.children = child.Maker{Writer: r.cached, Live: r.live, Label: LabelSnapshot}
	err := ctrl.NewControllerManagedBy(mgr).
		Named("virtualmachinesnapshot" + o.ControllerSuffix).
		For(&vmsnapshotv1.VirtualMachineSnapshot{}).
		WithOptions(reconcile.Options(reconcile.ControllerWorkers)).
		Complete(r)
	if err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("virtualmachinesnapshotcontent"+o.ControllerSuffix).
		For(&vmsnapshotv1.VirtualMachineSnapshotContent{}, builder.OnlyMetadata, builder.WithPredicates(predicate.NewPredicateFuncs(isHeld))).
		WithOptions(reconcile.Options(reconcile.ControllerWorkers)).
		Complete(&contentReconciler{r})
}
