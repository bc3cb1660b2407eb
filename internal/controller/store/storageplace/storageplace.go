// Package storageplace says where the storage of a backup storage location can be used. Images are restored and backed
// up on a node that reaches both their disk and that storage. It reads from the API server, and waits for nothing.
package storageplace

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/datamove/storageuse"
	"github.com/varvebackup/varve/internal/location"
	"github.com/varvebackup/varve/internal/nodeselector"
	"github.com/varvebackup/varve/internal/reconcile"
)

// Place is where a storage can be used. The zero value is one that all nodes reach.
type Place struct {
	// Nodes are those that reach it; nil: all.
	Nodes map[string]bool
	// InUse is the node whose pods now use a storage that only one node can use at a time; "": none.
	InUse string
}

// Reaches says whether a node reaches the storage.
func (p *Place) Reaches(node string) bool { return p.Nodes == nil || p.Nodes[node] }

// Compare orders nodes for a pod that needs the storage. The node that uses a storage of one node comes first: on any
// other node the pod would wait.
func (p *Place) Compare(a, b string) int {
	switch {
	case a == b:
		return 0
	case a == p.InUse:
		return -1
	case b == p.InUse:
		return 1
	}
	return 0
}

// Read returns where the storage of a location can be used. namespace is Varve's. For a location that is wrong it
// returns the zero value: the location's repository says what is wrong, and the data mover waits until it is mended.
func Read(
	ctx context.Context, live client.Reader, namespace string, l *velerov1.BackupStorageLocation,
) (Place, error) {
	var p Place
	if l.Spec.Provider != location.ProviderClaim {
		return p, nil
	}
	where, err := location.Parse(l, nil)
	if err != nil {
		return p, nil //nolint:nilerr // see above
	}
	key := types.NamespacedName{Namespace: namespace, Name: where.Volume.PersistentVolumeClaim.ClaimName}
	claim, err := reconcile.Find(ctx, live, key, &corev1.PersistentVolumeClaim{})
	if err != nil {
		return p, err
	}
	storage, err := datamove.ClaimStorage(*where.Volume, claim)
	if err != nil {
		return p, nil //nolint:nilerr // see above
	}
	p.InUse, err = storageuse.FindNode(ctx, live, namespace, storage)
	if err != nil || claim.Spec.VolumeName == "" {
		return p, err
	}
	volume, err := reconcile.Find(ctx, live, types.NamespacedName{Name: claim.Spec.VolumeName}, &corev1.PersistentVolume{})
	if err != nil || volume == nil || volume.Spec.NodeAffinity == nil {
		return p, err
	}
	var nodes corev1.NodeList
	if err := live.List(ctx, &nodes); err != nil {
		return p, fmt.Errorf("list nodes: %w", err)
	}
	p.Nodes = map[string]bool{}
	for i := range nodes.Items {
		n := &nodes.Items[i]
		p.Nodes[n.Name] = nodeselector.Selects(volume.Spec.NodeAffinity.Required, n)
	}
	return p, nil
}
