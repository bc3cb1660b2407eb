package disruption

import (
	"context"
	"testing"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
)

// cluster plays the API server: it has an instance and perhaps a budget.
type cluster struct {
	client.Client
	instance *kubevirtv1.VirtualMachineInstance
	budget   *policyv1.PodDisruptionBudget
}

func (c *cluster) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	switch o := o.(type) {
	case *kubevirtv1.VirtualMachineInstance:
		if c.instance == nil {
			return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
		}
		c.instance.DeepCopyInto(o)
	case *policyv1.PodDisruptionBudget:
		if c.budget == nil {
			return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
		}
		c.budget.DeepCopyInto(o)
	}
	return nil
}

func (c *cluster) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	if c.budget != nil {
		list.(*policyv1.PodDisruptionBudgetList).Items = []policyv1.PodDisruptionBudget{*c.budget}
	}
	return nil
}

func (c *cluster) Create(_ context.Context, o client.Object, _ ...client.CreateOption) error {
	if c.budget != nil {
		return apierrors.NewAlreadyExists(schema.GroupResource{}, o.GetName())
	}
	c.budget = o.(*policyv1.PodDisruptionBudget)
	return nil
}

func (c *cluster) Delete(context.Context, client.Object, ...client.DeleteOption) error {
	c.budget = nil
	return nil
}

// A deletion with --cascade=orphan also removes the budget's owner. Nobody else would remove such a budget.
func TestReconcile_budgetThatLostItsOwner(t *testing.T) {
	t.Parallel()
	none := func(b *policyv1.PodDisruptionBudget) { b.OwnerReferences = nil }
	for name, c := range map[string]struct {
		edit   func(*policyv1.PodDisruptionBudget)
		needed bool
		gone   bool // the instance
		stays  bool
	}{
		"nothing needs it":      {none, false, false, false},
		"a backup needs it":     {none, true, false, true},
		"its instance is gone":  {none, false, true, false},
		"another's by its name": {func(b *policyv1.PodDisruptionBudget) { b.OwnerReferences, b.Name = nil, "mine" }, false, true, true},
		"somebody else's": {func(b *policyv1.PodDisruptionBudget) {
			b.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "d", UID: "d", Controller: ptr.To(true)}}
		}, false, false, true},
	} {
		instance := &kubevirtv1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "vm", UID: "i"}}
		if c.needed {
			instance.Spec.UtilityVolumes = []kubevirtv1.UtilityVolume{{Name: "u"}}
		}
		server := &cluster{instance: instance, budget: budgetFor(instance)}
		c.edit(server.budget)
		if c.gone {
			server.instance = nil
		}
		r := &reconciler{cached: server}
		if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(instance)}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := server.budget != nil; got != c.stays {
			t.Errorf("%s: stays %t", name, got)
		}
		if c.needed && !metav1.IsControlledBy(server.budget, instance) {
			t.Errorf("%s: nobody removes it after the instance: %+v", name, server.budget.OwnerReferences)
		}
	}
}
