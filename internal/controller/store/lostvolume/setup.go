package lostvolume

import (
	"context"
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/reconcile"
)

// Options are what Setup needs besides the manager.
type Options struct {
	// Namespace is Varve's own.
	Namespace string
	// GivenUp is how long a node or a disk must be gone. Default: 5 minutes.
	GivenUp time.Duration
	// Interval is the pause between two looks at the PersistentVolumes while something is gone: they are in no cache.
	// Default: 30 seconds. Otherwise they are looked at every 20 intervals.
	Interval time.Duration
	// Clock tells the time. Default: the machine's.
	Clock clock.PassiveClock
	// ControllerSuffix distinguishes the controllers of two managers in one process, for example in tests.
	ControllerSuffix string
}

type reconciler struct {
	Options
	cached client.Client
	live   client.Reader
	events events.EventRecorder
	// lostSince says since when this process has seen that something is gone. One worker uses it.
	lostSince map[lost]time.Time
	// listed is when the PersistentVolumes were listed last.
	listed time.Time
}

// Setup adds the controller to mgr.
func Setup(mgr ctrl.Manager, o Options) error {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.GivenUp <= 0 {
		o.GivenUp = 5 * time.Minute
	}
	if o.Interval <= 0 {
		o.Interval = 30 * time.Second
	}
	r := &reconciler{
		Options: o, cached: mgr.GetClient(), live: mgr.GetAPIReader(), lostSince: map[lost]time.Time{},
		events: reconcile.ShortenNotes(mgr.GetEventRecorder("varve-volumes")),
	}
	// There is one request: all volumes are looked at together.
	all := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []ctrl.Request {
		return []ctrl.Request{{NamespacedName: types.NamespacedName{Name: "volumes"}}}
	})
	disks := predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return !maps.Equal(disksOf(e.ObjectOld), disksOf(e.ObjectNew))
	}}
	return ctrl.NewControllerManagedBy(mgr).Named("lostvolume"+o.ControllerSuffix).
		Watches(&longhornv1.Node{}, all, builder.WithPredicates(predicate.Or(disks, predicate.GenerationChangedPredicate{}))).
		Watches(&longhornv1.InstanceManager{}, all, builder.WithPredicates(predicate.Funcs{
			UpdateFunc: func(e event.UpdateEvent) bool { return stateOf(e.ObjectOld) != stateOf(e.ObjectNew) },
		})).
		WithOptions(reconcile.Options(1)).Complete(r)
}

// disksOf returns the disks that a Node lists, by their UUIDs.
func disksOf(o client.Object) map[string]bool {
	n, ok := o.(*longhornv1.Node)
	if !ok {
		return nil
	}
	return findPlaces([]longhornv1.Node{*n}, nil).disks
}

func stateOf(o client.Object) string {
	if m, ok := o.(*longhornv1.InstanceManager); ok {
		return m.Status.CurrentState
	}
	return ""
}
