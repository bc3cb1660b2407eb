// Package virttemplate has a client of templates.
package virttemplate

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	"kubevirt.io/virt-template-api/core/v1beta1"
)

// Clientset is a client of all versions of the kind, of which there is one.
type Clientset struct{ client rest.Interface }

// NewForConfig returns a client.
func NewForConfig(config *rest.Config) (*Clientset, error) {
	c := *config
	c.GroupVersion = &v1beta1.GroupVersion
	c.APIPath = "/apis"
	c.NegotiatedSerializer = serializer.NewCodecFactory(runtime.NewScheme()).WithoutConversion()
	client, err := rest.RESTClientFor(&c)
	return &Clientset{client: client}, err
}

// TemplateV1beta1 returns the client itself.
func (c *Clientset) TemplateV1beta1() *Clientset { return c }

// RESTClient returns the client of the group and version.
func (c *Clientset) RESTClient() rest.Interface { return c.client }
