package cluster

import (
	"context"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"github.com/varvebackup/varve/internal/subresource"
)

// RunsKubeVirt says whether upstream's KubeVirt runs the cluster's machines. The API server itself knows, also while
// KubeVirt does not answer.
func (c *Client) RunsKubeVirt(ctx context.Context) (bool, error) {
	api, err := discovery.NewDiscoveryClientForConfig(c.config)
	if err != nil {
		return false, fmt.Errorf("connect: %w", err)
	}
	var groups metav1.APIGroupList
	if err := api.RESTClient().Get().AbsPath("/apis").Do(ctx).Into(&groups); err != nil {
		return false, fmt.Errorf("list the API groups of the cluster: %w", err)
	}
	return slices.ContainsFunc(groups.Groups, func(g metav1.APIGroup) bool { return g.Name == subresource.Group }), nil
}

// ChangePower has KubeVirt start, stop or restart a machine: action is the name of the subresource.
func (c *Client) ChangePower(ctx context.Context, machine, action string) error {
	sender, err := rest.HTTPClientFor(c.config)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	machines, err := subresource.New(c.config, sender)
	if err != nil {
		return err
	}
	return machines.Call(ctx, types.NamespacedName{Namespace: c.Namespace, Name: machine}, action)
}
