// Package storageuse says which node uses a storage that the pods of one node alone can use at a time. It reads from
// the API server: a pod that was created a moment ago counts.
package storageuse

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/varvebackup/varve/internal/datamove"
)

// FindNode returns the node whose pods in a namespace, which is Varve's, use a storage of one node. It returns "" if no
// node uses it, or if several can.
func FindNode(ctx context.Context, live client.Reader, namespace string, s datamove.Storage) (string, error) {
	if !s.OneNode {
		return "", nil
	}
	var pods corev1.PodList
	err := live.List(ctx, &pods, client.InNamespace(namespace), client.MatchingLabels{datamove.LabelStorage: s.Label()})
	if err != nil {
		return "", fmt.Errorf("list the pods that use claim %s: %w", s.Volume.PersistentVolumeClaim.ClaimName, err)
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		if p.Spec.NodeName != "" && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			return p.Spec.NodeName, nil
		}
	}
	return "", nil
}
