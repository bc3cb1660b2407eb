package drive

import (
	"bytes"
	"context"
	"crypto/sha256"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/datamove/storageuse"
	"github.com/varvebackup/varve/internal/location"
	"github.com/varvebackup/varve/internal/nodeselector"
	"github.com/varvebackup/varve/internal/reconcile"
)

// storagePlace is where the storage of a location can be used.
type storagePlace struct {
	// nodes are those that reach it; nil: all.
	nodes *corev1.NodeSelector
	// oneNode: one of them at a time.
	oneNode bool
}

// selects says whether a node reaches the storage. Every node reaches one that is nil.
func (s *storagePlace) selects(n *corev1.Node) bool {
	return s == nil || nodeselector.Selects(s.nodes, n)
}

// compareNodes orders nodes always in the same way, and in no way that prefers the names that come first.
func compareNodes(a, b *corev1.Node) int {
	x, y := sha256.Sum256([]byte(a.Name)), sha256.Sum256([]byte(b.Name))
	return bytes.Compare(x[:], y[:])
}

// rememberedStorage is placeOfStorage, which it asks once for each location.
func (s *survey) rememberedStorage(ctx context.Context, v *Object) (*storagePlace, error) {
	at := datamove.Location{Namespace: v.Namespace, Name: v.Location}
	if place, known := s.storages[at]; known {
		return place, nil
	}
	place, err := s.placeOfStorage(ctx, v)
	if err == nil {
		s.storages[at] = place
	}
	return place, err
}

// placeOfStorage returns where the storage of an object's location can be used; nil if all nodes can.
func (m *Mover) placeOfStorage(ctx context.Context, v *Object) (*storagePlace, error) {
	l, err := reconcile.Find(ctx, m.Cached, types.NamespacedName{Namespace: v.Namespace, Name: v.Location}, &velerov1.BackupStorageLocation{})
	if err != nil || l == nil || l.Spec.Provider != location.ProviderClaim {
		return nil, err
	}
	where, err := location.Parse(l, nil)
	if err != nil {
		return nil, nil //nolint:nilnil,nilerr // the repository says what is wrong
	}
	claim, err := m.findClaim(ctx, m.Namespace, where.Volume.PersistentVolumeClaim.ClaimName)
	if err != nil {
		return nil, err
	}
	storage, err := datamove.ClaimStorage(*where.Volume, claim)
	if err != nil {
		return nil, nil //nolint:nilnil,nilerr // the repository says what is wrong
	}
	s := &storagePlace{oneNode: storage.OneNode}
	node, err := storageuse.FindNode(ctx, m.Live, m.Namespace, storage)
	if err != nil {
		return nil, err
	}
	if node != "" {
		s.nodes = nodeNamed(node)
		return s, nil
	}
	if claim.Spec.VolumeName == "" {
		if node := claim.Annotations[annotationSelectedNode]; node != "" {
			s.nodes = nodeNamed(node)
		}
		return s, nil
	}
	s.nodes, err = m.volumes.nodesOf(ctx, m, claim.Spec.VolumeName)
	return s, err
}

func nodeNamed(name string) *corev1.NodeSelector {
	return &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{name}}},
	}}}
}
