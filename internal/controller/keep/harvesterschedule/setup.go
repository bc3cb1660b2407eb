package harvesterschedule

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/source"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	"github.com/varvebackup/varve/internal/controller/child"
	"github.com/varvebackup/varve/internal/reconcile"
)

// Options are what Setup needs besides the manager. Namespace has no default.
type Options struct {
	// Namespace is Varve's own. Locations are there.
	Namespace string
	// Clock tells the time. Default: the machine's.
	Clock clock.PassiveClock
	// ControllerSuffix distinguishes the controllers of two managers in one process, for example in tests.
	ControllerSuffix string
}

type reconciler struct {
	Options
	cached client.Client
	// live reads from the API server: only the metadata of schedules and backups is cached.
	live     client.Reader
	events   events.EventRecorder
	children child.Maker
	alarms   *alarms
	// strangers are the backups that are not adopted.
	strangers strangers
}

// Setup adds the controller to mgr.
func Setup(mgr ctrl.Manager, o Options) error {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	r := &reconciler{
		Options: o, cached: mgr.GetClient(), live: mgr.GetAPIReader(),
		events: reconcile.ShortenNotes(mgr.GetEventRecorder("varve-schedule")), alarms: newAlarms(o.Clock),
	}
	r.children = child.Maker{Writer: r.cached, Live: r.live, Label: harvesterv1.LabelSchedule}
	if err := mgr.Add(r.alarms); err != nil {
		return fmt.Errorf("add the alarms: %w", err)
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("harvesterschedule"+o.ControllerSuffix).
		For(&harvesterv1.ScheduleVMBackup{}, builder.OnlyMetadata, builder.WithPredicates(changedByOthers())).
		Watches(&harvesterv1.VirtualMachineBackup{}, handler.EnqueueRequestsFromMapFunc(requestForSchedule),
			builder.OnlyMetadata, builder.WithPredicates(predicate.LabelChangedPredicate{})).
		WatchesRawSource(source.Channel(r.alarms.woken, &handler.EnqueueRequestForObject{})).
		WithOptions(reconcile.Options(reconcile.ControllerWorkers)).
		Complete(r)
}

// changedByOthers leaves the controller's own writes to the status out.
func changedByOthers() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return predicate.GenerationChangedPredicate{}.Update(e) || predicate.AnnotationChangedPredicate{}.Update(e) ||
			e.ObjectNew.GetDeletionTimestamp() != nil
	}}
}

// requestForSchedule returns the schedule that made a backup.
func requestForSchedule(_ context.Context, o client.Object) []ctrl.Request {
	namespace, name, ok := strings.Cut(o.GetAnnotations()[harvesterv1.AnnotationSchedule], "/")
	if !ok || namespace != o.GetNamespace() || o.GetLabels()[harvesterv1.LabelSchedule] == "" {
		return nil
	}
	return []ctrl.Request{{NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}}}
}
