package backuppolicy

import (
	"context"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	varvev1 "github.com/varvebackup/varve/api/varve/v1alpha1"
	"github.com/varvebackup/varve/internal/controller/child"
	"github.com/varvebackup/varve/internal/definition"
	"github.com/varvebackup/varve/internal/reconcile"
)

// Options are what Setup needs besides the manager.
type Options struct {
	// Clock tells the time. Default: the machine's.
	Clock clock.PassiveClock
	// ControllerSuffix distinguishes the controllers of two managers in one process, for example in tests.
	ControllerSuffix string
}

type reconciler struct {
	Options
	cached client.Client
	// live reads from the API server: of machines and schedules, only the metadata is cached.
	live     client.Reader
	children child.Maker
}

// Setup adds the controller to mgr.
func Setup(mgr ctrl.Manager, o Options) error {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	r := &reconciler{Options: o, cached: mgr.GetClient(), live: mgr.GetAPIReader()}
	r.children = child.Maker{Writer: r.cached, Live: r.live, Label: varvev1.LabelPolicy}
	machine := &metav1.PartialObjectMetadata{}
	machine.SetGroupVersionKind(definition.MachineKind)
	return ctrl.NewControllerManagedBy(mgr).
		Named("backuppolicy"+o.ControllerSuffix).
		For(&varvev1.BackupPolicy{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(machine, handler.EnqueueRequestsFromMapFunc(r.policiesOfMachine),
			builder.WithPredicates(changesSelection())).
		Watches(&harvesterv1.ScheduleVMBackup{}, handler.EnqueueRequestsFromMapFunc(r.policiesOfSchedule),
			builder.OnlyMetadata, builder.WithPredicates(changesSchedule())).
		WithOptions(reconcile.Options(reconcile.ControllerWorkers)).
		Complete(r)
}

// changesSelection lets events of machines through that may change whether a policy selects them.
func changesSelection() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return predicate.LabelChangedPredicate{}.Update(e) ||
			(e.ObjectOld.GetDeletionTimestamp() == nil) != (e.ObjectNew.GetDeletionTimestamp() == nil)
	}}
}

// changesSchedule leaves the status of schedules out.
func changesSchedule() predicate.Predicate {
	return predicate.Or(predicate.GenerationChangedPredicate{}, predicate.LabelChangedPredicate{},
		predicate.AnnotationChangedPredicate{})
}

// policiesOfMachine returns the policies that select a machine. After an update it is asked for the machine as it was,
// too.
func (r *reconciler) policiesOfMachine(ctx context.Context, o client.Object) []ctrl.Request {
	return r.selectPolicies(ctx, o.GetNamespace(), func(policy *varvev1.BackupPolicy) bool {
		selector, err := metav1.LabelSelectorAsSelector(&policy.Spec.Selector)
		return err == nil && selector.Matches(labels.Set(o.GetLabels()))
	})
}

// policiesOfSchedule returns the policies whose schedule has that name, or would have.
func (r *reconciler) policiesOfSchedule(ctx context.Context, o client.Object) []ctrl.Request {
	return r.selectPolicies(ctx, o.GetNamespace(), func(policy *varvev1.BackupPolicy) bool {
		return strings.HasPrefix(o.GetName(), policy.Name+"-")
	})
}

func (r *reconciler) selectPolicies(
	ctx context.Context, namespace string, concerns func(*varvev1.BackupPolicy) bool,
) []ctrl.Request {
	var list varvev1.BackupPolicyList
	if err := r.cached.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		log.FromContext(ctx).Error(fmt.Errorf("list the BackupPolicies of %s: %w", namespace, err),
			"a change of a machine or of a schedule is not seen")
		return nil
	}
	var requests []ctrl.Request
	for i := range list.Items {
		if policy := &list.Items[i]; concerns(policy) {
			requests = append(requests, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(policy)})
		}
	}
	return requests
}
