// Package subresource asks upstream's KubeVirt to start, stop or restart a machine, as virtctl does: by a subresource
// of the machine.
package subresource

import (
	"context"
	"fmt"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// Group is the API group of the subresources. Clusters with Varve's own runtime do not have it.
const Group = "subresources.kubevirt.io"

// Client calls subresources of machines.
type Client struct{ api rest.Interface }

// New returns a client that sends its requests with c.
func New(config *rest.Config, c *http.Client) (*Client, error) {
	own := rest.CopyConfig(config)
	own.GroupVersion, own.APIPath = &schema.GroupVersion{Group: Group, Version: "v1"}, "/apis"
	own.NegotiatedSerializer = clientgoscheme.Codecs.WithoutConversion()
	// KubeVirt answers without content, and refuses requests that accept JSON alone.
	own.AcceptContentTypes, own.ContentType = "", ""
	api, err := rest.RESTClientForConfigAndClient(own, c)
	if err != nil {
		return nil, fmt.Errorf("make a client of %s: %w", Group, err)
	}
	return &Client{api}, nil
}

// Call calls a subresource of a machine, such as start. Errors are those of the API server and of KubeVirt.
func (c *Client) Call(ctx context.Context, machine types.NamespacedName, name string) error {
	return c.api.Put().Namespace(machine.Namespace).Resource("virtualmachines").Name(machine.Name).SubResource(name).
		Body([]byte("{}")).Do(ctx).Error()
}
