package disruption

import (
	"context"
	"fmt"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/varvebackup/varve/internal/layout"
)

// isOrphan reports whether the budget was an instance's and has lost its owner, for example by `kubectl delete vmi
// --cascade=orphan`. The garbage collector does not remove such a budget.
func isOrphan(budget *policyv1.PodDisruptionBudget) bool {
	selector := budget.Spec.Selector
	return metav1.GetControllerOfNoCopy(budget) == nil && selector != nil &&
		budget.Name == layout.BackupBudget(budget.Labels[layout.LabelVM], types.UID(selector.MatchLabels[layout.LabelCreatedBy]))
}

// requestsForOrphan maps a budget that has lost its owner to the instance that it was made for, which may be gone.
func requestsForOrphan(_ context.Context, o client.Object) []ctrl.Request {
	if budget, ok := o.(*policyv1.PodDisruptionBudget); !ok || !isOrphan(budget) {
		return nil
	}
	return []ctrl.Request{{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetLabels()[layout.LabelVM]}}}
}

// removeOrphans deletes the ownerless budgets of instances with this name.
func (r *reconciler) removeOrphans(ctx context.Context, instance types.NamespacedName) error {
	budgets := &policyv1.PodDisruptionBudgetList{}
	if err := r.cached.List(ctx, budgets, client.InNamespace(instance.Namespace), client.MatchingLabels{layout.LabelVM: instance.Name}); err != nil {
		return fmt.Errorf("list budgets of instances named %s: %w", instance, err)
	}
	for i := range budgets.Items {
		if budget := &budgets.Items[i]; isOrphan(budget) {
			if err := r.removeBudget(ctx, budget); err != nil {
				return err
			}
		}
	}
	return nil
}

// removeBudget deletes this budget. It succeeds if the budget is gone, or if another one has its name by now.
func (r *reconciler) removeBudget(ctx context.Context, budget *policyv1.PodDisruptionBudget) error {
	if err := r.cached.Delete(ctx, budget, client.Preconditions{UID: &budget.UID}); client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete budget %s: %w", budget.Name, err)
	}
	return nil
}
