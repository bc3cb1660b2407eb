package backingimage

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/location"
	"github.com/varvebackup/varve/internal/nodeselector"
	"github.com/varvebackup/varve/internal/reconcile"
)

// storagePlace is where the storage of a location can be used.
type storagePlace struct {
	// nodes are those that reach it; nil: all.
	nodes map[string]bool
	// inUse is the node whose pods use a storage of one node at a time now; "": none.
	inUse string
}

// compare puts a disk of the node first that uses a storage of one node: on another node, a restore waits.
func (s *storagePlace) compare(a, b *diskView) int {
	switch {
	case s.inUse == "" || (a.node == s.inUse) == (b.node == s.inUse):
		return 0
	case a.node == s.inUse:
		return -1
	}
	return 1
}

// listReachableDisks returns the disks of nodes that reach the storage of a restore's location; nil: all disks.
func (in *input) listReachableDisks() map[string]bool {
	nodes := in.origin.storage.nodes
	if nodes == nil {
		return nil
	}
	disks := map[string]bool{}
	for uuid, d := range in.disks {
		if nodes[d.node] {
			disks[uuid] = true
		}
	}
	return disks
}

// readStorage reads which nodes reach the storage of a restore's location, before the first copy's disk is chosen. What
// is wrong with the location says its repository, for which the DataDownload waits.
func (r *reconciler) readStorage(ctx context.Context, image *longhornv1.BackingImage, o *origin) error {
	if s := image.Status.V2FirstCopyStatus; o.location == nil || o.location.Spec.Provider != location.ProviderClaim ||
		s == longhornv1.StateInProgress || s == longhornv1.StateUnknown {
		return nil
	}
	where, err := location.Parse(o.location, nil)
	if err != nil {
		return nil //nolint:nilerr // see above
	}
	key := types.NamespacedName{Namespace: r.Namespace, Name: where.Volume.PersistentVolumeClaim.ClaimName}
	claim, err := reconcile.Find(ctx, r.live, key, &corev1.PersistentVolumeClaim{})
	if err != nil {
		return err
	}
	storage, err := datamove.ClaimStorage(*where.Volume, claim)
	if err != nil {
		return nil //nolint:nilerr // see above
	}
	if o.storage.inUse, err = r.findNodeInUse(ctx, storage); err != nil || claim.Spec.VolumeName == "" {
		return err
	}
	volume, err := reconcile.Find(ctx, r.live, types.NamespacedName{Name: claim.Spec.VolumeName}, &corev1.PersistentVolume{})
	if err != nil || volume == nil || volume.Spec.NodeAffinity == nil {
		return err
	}
	var nodes corev1.NodeList
	if err := r.live.List(ctx, &nodes); err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	o.storage.nodes = map[string]bool{}
	for i := range nodes.Items {
		n := &nodes.Items[i]
		o.storage.nodes[n.Name] = nodeselector.Selects(volume.Spec.NodeAffinity.Required, n)
	}
	return nil
}

// findNodeInUse returns the node whose pods use a storage of one node, or "".
func (r *reconciler) findNodeInUse(ctx context.Context, s datamove.Storage) (string, error) {
	if !s.OneNode {
		return "", nil
	}
	var pods corev1.PodList
	err := r.live.List(ctx, &pods, client.InNamespace(r.Namespace), client.MatchingLabels{datamove.LabelStorage: s.Label()})
	if err != nil {
		return "", fmt.Errorf("list the pods that use the storage of a location: %w", err)
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		if p.Spec.NodeName != "" && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			return p.Spec.NodeName, nil
		}
	}
	return "", nil
}
