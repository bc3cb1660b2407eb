//go:build controlplane

package expose

import (
	"context"
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// rememberingClient asks the API server the same question once, until something is written through it. One goroutine uses it.
type rememberingClient struct {
	client.Client
	answers map[string]answer
}

type answer struct {
	object runtime.Object
	err    error
}

// remember fills o with the answer to a question: with an earlier one, or with that of ask.
func (c *rememberingClient) remember(question string, o runtime.Object, ask func() error) error {
	known, ok := c.answers[question]
	if !ok {
		known.err = ask()
		known.object = o.DeepCopyObject()
		if c.answers == nil {
			c.answers = map[string]answer{}
		}
		c.answers[question] = known
		return known.err
	}
	reflect.ValueOf(o).Elem().Set(reflect.ValueOf(known.object.DeepCopyObject()).Elem())
	return known.err
}

// Get implements client.Client.
func (c *rememberingClient) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	return c.remember(fmt.Sprintf("%T %s", o, key), o, func() error { return c.Client.Get(ctx, key, o, opts...) })
}

// List implements client.Client.
func (c *rememberingClient) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	return c.remember(fmt.Sprintf("%T %v", list, opts), list, func() error { return c.Client.List(ctx, list, opts...) })
}

// Create implements client.Client.
func (c *rememberingClient) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	c.answers = nil
	return c.Client.Create(ctx, o, opts...)
}

// Update implements client.Client.
func (c *rememberingClient) Update(ctx context.Context, o client.Object, opts ...client.UpdateOption) error {
	c.answers = nil
	return c.Client.Update(ctx, o, opts...)
}

// Delete implements client.Client.
func (c *rememberingClient) Delete(ctx context.Context, o client.Object, opts ...client.DeleteOption) error {
	c.answers = nil
	return c.Client.Delete(ctx, o, opts...)
}

// Status implements client.Client.
func (c *rememberingClient) Status() client.SubResourceWriter {
	c.answers = nil
	return c.Client.Status()
}
