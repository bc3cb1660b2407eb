package cluster

import (
	"context"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// subresources is the API with which upstream's KubeVirt starts, stops and restarts machines. Varve's own runtime has none.
var subresources = schema.GroupVersion{Group: "subresources.kubevirt.io", Version: "v1"}

// RunsKubeVirt says whether upstream's KubeVirt runs the cluster's machines. The API server itself knows, also while
// KubeVirt does not answer.
func (c *Client) RunsKubeVirt(ctx context.Context) (bool, error) {
	var groups metav1.APIGroupList
	api, err := c.machinePower()
	if err != nil {
		return false, err
	}
	if err := api.Get().AbsPath("/apis").Do(ctx).Into(&groups); err != nil {
		return false, fmt.Errorf("list the API groups of the cluster: %w", err)
	}
	return slices.ContainsFunc(groups.Groups, func(g metav1.APIGroup) bool { return g.Name == subresources.Group }), nil
}

// ChangePower has KubeVirt start, stop or restart a machine: action is the name of the subresource.
func (c *Client) ChangePower(ctx context.Context, machine, action string) error {
	api, err := c.machinePower()
	if err != nil {
		return err
	}
	return api.Put().Namespace(c.Namespace).Resource("virtualmachines").Name(machine).SubResource(action).
		SetHeader("Content-Type", "application/json").Body([]byte("{}")).Do(ctx).Error()
}

// machinePower returns a client of the subresources.
func (c *Client) machinePower() (*rest.RESTClient, error) {
	config := rest.CopyConfig(c.config)
	config.GroupVersion, config.APIPath = &subresources, "/apis"
	config.NegotiatedSerializer = clientgoscheme.Codecs.WithoutConversion()
	config.ContentType = "application/json" // and anything is accepted: KubeVirt answers without content
	api, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return api, nil
}
