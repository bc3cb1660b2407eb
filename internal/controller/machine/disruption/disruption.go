// Package disruption keeps drains away from a machine while it is backed up (VEP 25, evictions: a drain is blocked
// until the backup ends or is cancelled).
//
// While an instance has a utility volume or is locked by a backup, a PodDisruptionBudget covers its launcher pod
// and its attachment pods and allows no eviction. The instance owns the budget. The budget goes with the instance,
// or when the last volume and the lock are gone, whoever removed them. A budget that has lost its owner is removed,
// and created again if it is needed. The package has no say in deletions, which need no eviction.
package disruption

import (
	"context"
	"fmt"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/reconcile"
)

// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances,verbs=get;list;watch
// +kubebuilder:rbac:groups=policy,resources=poddisruptionbudgets,verbs=get;list;watch;create;delete

// App is the value of the label kubevirt.io on budgets.
const App = "varve-backup"

// everyPod is more pods than an instance has. A budget that wants this many healthy pods allows no eviction. A
// percentage, such as 100 %, would need a controller with a scale.
const everyPod = 1000

// Setup adds the controller to mgr.
func Setup(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("disruption").
		For(&kubevirtv1.VirtualMachineInstance{}).
		Owns(&policyv1.PodDisruptionBudget{}).
		Watches(&policyv1.PodDisruptionBudget{}, handler.EnqueueRequestsFromMapFunc(requestsForOrphan)).
		WithOptions(reconcile.Options(reconcile.ControllerWorkers)).
		Complete(&reconciler{cached: mgr.GetClient()})
}

type reconciler struct{ cached client.Client }

// Reconcile creates or removes the budget of one instance.
func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	if err := r.removeOrphans(ctx, req.NamespacedName); err != nil {
		return ctrl.Result{}, err
	}
	instance := &kubevirtv1.VirtualMachineInstance{}
	if err := r.cached.Get(ctx, req.NamespacedName, instance); err != nil {
		// If the instance is gone, the garbage collector removes the budget that it owned.
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	wanted := budgetFor(instance)
	existing := &policyv1.PodDisruptionBudget{}
	err := r.cached.Get(ctx, client.ObjectKeyFromObject(wanted), existing)
	switch needed := needsBudget(instance); {
	case err != nil && !apierrors.IsNotFound(err):
		return ctrl.Result{}, fmt.Errorf("get budget %s: %w", wanted.Name, err)
	case needed && (err != nil || isOrphan(existing)):
		// A budget that exists but is not in the cache belongs to somebody else, or was created a moment ago.
		if err := r.cached.Create(ctx, wanted); err != nil && !apierrors.IsAlreadyExists(err) {
			return ctrl.Result{}, fmt.Errorf("create budget %s: %w", wanted.Name, err)
		}
	case !needed && err == nil && metav1.IsControlledBy(existing, instance):
		return ctrl.Result{}, r.removeBudget(ctx, existing)
	}
	return ctrl.Result{}, nil
}

// needsBudget reports whether drains must leave the instance's pods alone now.
func needsBudget(instance *kubevirtv1.VirtualMachineInstance) bool {
	if instance.Status.Phase.Final() {
		return false
	}
	tracking := instance.Status.ChangedBlockTracking
	return len(instance.Spec.UtilityVolumes) > 0 || tracking != nil && tracking.BackupStatus != nil
}

// budgetFor returns the instance's budget. Its name follows from the instance's UID.
func budgetFor(instance *kubevirtv1.VirtualMachineInstance) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: instance.Namespace, Name: layout.BackupBudget(instance.Name, instance.UID),
			Labels:          map[string]string{layout.LabelApp: App, layout.LabelVM: instance.Name},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(instance, kubevirtv1.GroupVersion.WithKind("VirtualMachineInstance"))},
		},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: ptr.To(intstr.FromInt32(everyPod)),
			Selector:     &metav1.LabelSelector{MatchLabels: map[string]string{layout.LabelCreatedBy: string(instance.UID)}},
		},
	}
}
