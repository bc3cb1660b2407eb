package instancepod

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Get reads the pod with this name, whoever made it. It returns nil if there is none. live must read from the API
// server, not from a cache.
func Get(ctx context.Context, live client.Reader, namespace, name string) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	err := live.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, pod)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // nothing is an answer
	}
	if err != nil {
		return nil, fmt.Errorf("get pod %s/%s: %w", namespace, name, err)
	}
	return pod, nil
}
