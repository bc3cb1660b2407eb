// Package subresourcestart starts a machine of KubeVirt's that starts on request, as its users do: by the subresource
// start.
package subresourcestart

import (
	"context"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// +kubebuilder:rbac:groups=subresources.kubevirt.io,resources=virtualmachines/start,verbs=update

// New returns what starts a machine. It returns no error for a machine that somebody is starting already.
func New(config *rest.Config, c *http.Client) (func(context.Context, *unstructured.Unstructured) error, error) {
	own := rest.CopyConfig(config)
	own.GroupVersion = &schema.GroupVersion{Group: "subresources.kubevirt.io", Version: "v1"}
	own.APIPath, own.NegotiatedSerializer = "/apis", clientgoscheme.Codecs.WithoutConversion()
	api, err := rest.RESTClientForConfigAndClient(own, c)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, vm *unstructured.Unstructured) error {
		err := api.Put().Namespace(vm.GetNamespace()).Resource("virtualmachines").Name(vm.GetName()).SubResource("start").
			Body([]byte("{}")).Do(ctx).Error()
		if apierrors.IsConflict(err) {
			return nil // it runs, or is about to
		}
		return err
	}, nil
}
