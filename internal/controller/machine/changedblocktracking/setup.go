package changedblocktracking

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/reconcile"
)

// Options are what Setup needs besides the manager.
type Options struct {
	// Configuration is the KubeVirt object with the selectors.
	Configuration types.NamespacedName
	// Clock tells the time. Default: the machine's.
	Clock clock.PassiveClock
}

// Setup adds the controllers to mgr: one for machines, one that reports invalid selectors.
func Setup(mgr ctrl.Manager, opts Options) error {
	if opts.Clock == nil {
		opts.Clock = clock.RealClock{}
	}
	r := &reconciler{clock: opts.Clock, cached: mgr.GetClient(), events: reconcile.ShortenNotes(mgr.GetEventRecorder("varve-changedblocktracking")), configuration: opts.Configuration}
	err := ctrl.NewControllerManagedBy(mgr).
		Named("changedblocktracking").
		For(&kubevirtv1.VirtualMachine{}).
		Watches(&kubevirtv1.VirtualMachineInstance{}, handler.EnqueueRequestsFromMapFunc(sameName)).
		Watches(&corev1.PersistentVolumeClaim{}, handler.EnqueueRequestsFromMapFunc(r.usersOf)).
		Watches(&corev1.Namespace{}, handler.EnqueueRequestsFromMapFunc(r.machinesIn), builder.WithPredicates(predicate.LabelChangedPredicate{})).
		Watches(&kubevirtv1.KubeVirt{}, handler.EnqueueRequestsFromMapFunc(r.everyMachine)).
		WithOptions(reconcile.Options(reconcile.ControllerWorkers)).
		Complete(r)
	if err != nil {
		return fmt.Errorf("set up the controller of tracking states: %w", err)
	}
	s := &selectorReconciler{cached: r.cached, events: r.events, configuration: opts.Configuration}
	if err := ctrl.NewControllerManagedBy(mgr).Named("changedblocktracking-selectors").For(&kubevirtv1.KubeVirt{}).Complete(s); err != nil {
		return fmt.Errorf("set up the controller of selectors: %w", err)
	}
	return nil
}

func sameName(_ context.Context, o client.Object) []ctrl.Request {
	return []ctrl.Request{{NamespacedName: client.ObjectKeyFromObject(o)}}
}

// usersOf maps a claim to the machines whose instance mounts it, or, if it is a state claim, to the machine that it
// belongs to.
func (r *reconciler) usersOf(ctx context.Context, claim client.Object) []ctrl.Request {
	if vm := claim.GetLabels()[LabelState]; vm != "" {
		return []ctrl.Request{{NamespacedName: types.NamespacedName{Namespace: claim.GetNamespace(), Name: vm}}}
	}
	list := &kubevirtv1.VirtualMachineInstanceList{}
	if err := r.cached.List(ctx, list, client.InNamespace(claim.GetNamespace())); err != nil {
		log.FromContext(ctx).Error(err, "list instances", "claim", client.ObjectKeyFromObject(claim))
		return nil
	}
	var requests []ctrl.Request
	for _, instance := range list.Items {
		if slices.ContainsFunc(instance.Spec.Volumes, func(v kubevirtv1.Volume) bool { return v.PersistentVolumeClaim.ClaimName == claim.GetName() }) {
			requests = append(requests, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(&instance)})
		}
	}
	return requests
}

func (r *reconciler) machinesIn(ctx context.Context, ns client.Object) []ctrl.Request {
	return r.requestsForMachines(ctx, client.InNamespace(ns.GetName()))
}

func (r *reconciler) everyMachine(ctx context.Context, kv client.Object) []ctrl.Request {
	if client.ObjectKeyFromObject(kv) != r.configuration {
		return nil
	}
	return r.requestsForMachines(ctx)
}

func (r *reconciler) requestsForMachines(ctx context.Context, opts ...client.ListOption) []ctrl.Request {
	list := &kubevirtv1.VirtualMachineList{}
	if err := r.cached.List(ctx, list, opts...); err != nil {
		log.FromContext(ctx).Error(err, "list virtual machines")
		return nil
	}
	requests := make([]ctrl.Request, 0, len(list.Items))
	for i := range list.Items {
		requests = append(requests, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
	}
	return requests
}

// reconciler applies what decide says to one machine.
type reconciler struct {
	clock         clock.PassiveClock
	cached        client.Client
	events        events.EventRecorder
	configuration types.NamespacedName
}
