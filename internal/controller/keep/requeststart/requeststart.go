// Package requeststart starts a machine of Varve's own runtime that starts on request: the request is in its status.
package requeststart

import (
	"context"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/varvebackup/varve/internal/reconcile"
)

// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachines/status,verbs=patch

// New returns what starts a machine. It updates the machine's resource version.
func New(c client.Client) func(context.Context, *unstructured.Unstructured) error {
	return func(ctx context.Context, vm *unstructured.Unstructured) error {
		asked := vm.DeepCopy()
		requests := []any{map[string]any{"action": "Start"}}
		if err := unstructured.SetNestedSlice(asked.Object, requests, "status", "stateChangeRequests"); err != nil {
			return err
		}
		if err := c.Status().Patch(ctx, asked, reconcile.MergeFrom(vm)); err != nil {
			return err
		}
		vm.SetResourceVersion(asked.GetResourceVersion())
		return nil
	}
}
