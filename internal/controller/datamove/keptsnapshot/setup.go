package keptsnapshot

import (
	"cmp"
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/source"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/controller/metric"
	"github.com/varvebackup/varve/internal/reconcile"
)

// lookInterval is the time between looks without a reason: claims, settings and services are not watched.
const lookInterval = time.Minute

// Options are what Setup needs besides the manager. Namespace has no default.
type Options struct {
	// Namespace is Varve's own. Kept snapshots and the settings are there.
	Namespace string
	// Interval is the time between looks without a reason. Default: a minute.
	Interval time.Duration
	// ControllerSuffix distinguishes the controllers of two managers in one process, for example in tests.
	ControllerSuffix string
	// Counted is told after each look how many kept snapshots there were; nil: it could not be seen. Counted may be nil.
	Counted func(map[metric.KeptSnapshots]int)
}

type reconciler struct {
	Options
	cached client.Client
	live   client.Reader
}

// look is the one request.
var look = ctrl.Request{NamespacedName: types.NamespacedName{Name: "look"}}

// Setup adds the controller to mgr.
func Setup(mgr ctrl.Manager, o Options) error {
	o.Interval = cmp.Or(o.Interval, lookInterval)
	r := &reconciler{Options: o, cached: mgr.GetClient(), live: mgr.GetAPIReader()}
	always := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []ctrl.Request { return []ctrl.Request{look} })
	first := source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[ctrl.Request]) error {
		queue.Add(look)
		return nil
	})
	return ctrl.NewControllerManagedBy(mgr).
		Named("keptsnapshot"+o.ControllerSuffix).
		Watches(&velerov2.DataUpload{}, always, builder.WithPredicates(endsOrGoes)).
		WatchesRawSource(first).
		WithOptions(reconcile.Options(1)).
		Complete(r)
}

// endsOrGoes lets through what may make a snapshot useless: a DataUpload that ends, or that is deleted.
var endsOrGoes = predicate.Funcs{
	CreateFunc:  func(event.CreateEvent) bool { return false },
	GenericFunc: func(event.GenericEvent) bool { return false },
	UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.(*velerov2.DataUpload)
		after, ok2 := e.ObjectNew.(*velerov2.DataUpload)
		return ok && ok2 && (before.Status.Phase.Ended() != after.Status.Phase.Ended() || (before.DeletionTimestamp == nil) != (after.DeletionTimestamp == nil))
	},
}
