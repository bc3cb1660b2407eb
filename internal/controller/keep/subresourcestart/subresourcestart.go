// Package subresourcestart starts a machine of KubeVirt's that starts on request, as its users do: by the subresource
// start.
package subresourcestart

import (
	"context"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/varvebackup/varve/internal/subresource"
)

// +kubebuilder:rbac:groups=subresources.kubevirt.io,resources=virtualmachines/start,verbs=update

// New returns what starts a machine. It returns no error for a machine that somebody is starting already.
func New(config *rest.Config, c *http.Client) (func(context.Context, *unstructured.Unstructured) error, error) {
	machines, err := subresource.New(config, c)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, vm *unstructured.Unstructured) error {
		err := machines.Call(ctx, client.ObjectKeyFromObject(vm), "start")
		if apierrors.IsConflict(err) {
			return nil // it runs, or is about to
		}
		return err
	}, nil
}
