// Package silence says in the status of a node's Node, InstanceManager and volumes that the node's store does not
// report. The store, when it is back, says again what is true.
//
// Silence is counted by this process's clock from the moment at which it saw the heartbeat change last, as Kubernetes
// judges nodes by their leases: the clock of a node may be wrong by hours. A process that starts counts from its start,
// and what is silent already stays so until its heartbeat changes. Nobody else compares heartbeats with a clock:
// status.currentState of the InstanceManager says whether its report counts.
package silence

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/reconcile"
)

// +kubebuilder:rbac:groups=longhorn.io,namespace=varve,resources=nodes;instancemanagers;volumes;replicas,verbs=get;list;watch
// +kubebuilder:rbac:groups=longhorn.io,namespace=varve,resources=nodes/status;instancemanagers/status;volumes/status,verbs=patch

// Options are what Setup needs besides the manager.
type Options struct {
	// Namespace is Varve's own.
	Namespace string
	// Clock tells the time. Default: the machine's.
	Clock clock.PassiveClock
	// ControllerSuffix distinguishes the controllers of two managers in one process, for example in tests.
	ControllerSuffix string
}

type reconciler struct {
	Options
	cached client.Client
	// seen are the heartbeats, by their InstanceManagers. One worker uses it.
	seen map[client.ObjectKey]heartbeat
}

// heartbeat is the last one of a store, and when this process saw it first.
type heartbeat struct {
	manager types.UID
	time    metav1.MicroTime // by the node's clock, zero before the first one
	seenAt  time.Time
}

// Setup adds the controller to mgr.
func Setup(mgr ctrl.Manager, o Options) error {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	return ctrl.NewControllerManagedBy(mgr).Named("storesilence" + o.ControllerSuffix).For(&longhornv1.InstanceManager{}).
		WithOptions(reconcile.Options(1)).Complete(
		&reconciler{Options: o, cached: mgr.GetClient(), seen: map[client.ObjectKey]heartbeat{}})
}

// Reconcile looks at the store of one node, and again when its next report is overdue.
func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	manager, err := reconcile.Find(ctx, r.cached, req.NamespacedName, &longhornv1.InstanceManager{})
	if err == nil && manager == nil {
		delete(r.seen, req.NamespacedName)
	}
	if err != nil || manager == nil {
		return ctrl.Result{}, err
	}
	heard := r.noteHeartbeat(req.NamespacedName, manager)
	left := heard.seenAt.Add(longhornv1.ReportTimeout).Sub(r.Clock.Now())
	if left > 0 && manager.Status.CurrentState != longhornv1.ManagerUnknown {
		return ctrl.Result{RequeueAfter: left + time.Second}, nil
	}
	if err := r.markSilent(ctx, manager, heard.time); err != nil {
		return reconcile.RetryConflict(ctrl.Result{}, fmt.Errorf("say that the store of node %s is silent: %w", req.Name, err))
	}
	return ctrl.Result{}, nil
}

// noteHeartbeat returns the last heartbeat of a store.
func (r *reconciler) noteHeartbeat(key client.ObjectKey, manager *longhornv1.InstanceManager) heartbeat {
	now := heartbeat{manager: manager.UID, seenAt: r.Clock.Now()}
	if t := manager.Status.HeartbeatTime; t != nil {
		now.time = *t
	}
	if before, ok := r.seen[key]; ok && before.manager == now.manager && before.time.Equal(&now.time) {
		return before
	}
	r.seen[key] = now
	return now
}

func (r *reconciler) markSilent(
	ctx context.Context, manager *longhornv1.InstanceManager, heard metav1.MicroTime,
) error {
	before := manager.DeepCopy()
	manager.Status.CurrentState = longhornv1.ManagerUnknown
	if err := r.patchStatus(ctx, before, manager); err != nil {
		return err
	}
	node, err := reconcile.Find(ctx, r.cached, client.ObjectKeyFromObject(manager), &longhornv1.Node{})
	if err != nil {
		return err
	}
	said := "the node's store has never reported"
	if !heard.IsZero() {
		said = "the node's store reported last at " + heard.UTC().Format(time.RFC3339)
	}
	if node != nil {
		before := node.DeepCopy()
		meta.SetStatusCondition(&node.Status.Conditions, metav1.Condition{
			Type: longhornv1.ConditionReady, Status: metav1.ConditionUnknown, Reason: longhornv1.ReasonStoreSilent,
			Message: said + ": is varve store running there?",
		})
		if err := r.patchStatus(ctx, before, node); err != nil {
			return err
		}
	}
	return r.markVolumes(ctx, manager.Name)
}

// markVolumes says of the volumes of a node that it is not known how they are.
func (r *reconciler) markVolumes(ctx context.Context, node string) error {
	var replicas longhornv1.ReplicaList
	if err := r.cached.List(ctx, &replicas, client.InNamespace(r.Namespace)); err != nil {
		return fmt.Errorf("list the Replicas: %w", err)
	}
	for i := range replicas.Items {
		if replicas.Items[i].Spec.NodeID != node {
			continue
		}
		key := client.ObjectKey{Namespace: r.Namespace, Name: replicas.Items[i].Spec.VolumeName}
		volume, err := reconcile.Find(ctx, r.cached, key, &longhornv1.Volume{})
		if err != nil {
			return err
		}
		if volume == nil {
			continue
		}
		before := volume.DeepCopy()
		volume.Status.Robustness = longhornv1.RobustnessUnknown
		if err := r.patchStatus(ctx, before, volume); err != nil {
			return err
		}
	}
	return nil
}

func (r *reconciler) patchStatus(ctx context.Context, before, after client.Object) error {
	if equality.Semantic.DeepEqual(before, after) {
		return nil
	}
	err := r.cached.Status().Patch(ctx, after, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("patch the status of %T %s: %w", after, after.GetName(), err)
	}
	return nil
}
