package datamover

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/datamove/settings"
	"github.com/varvebackup/varve/internal/reconcile"
)

// targetWait is how long an object is left alone whose target claim does not exist yet: the claim says where it is needed.
const targetWait = 10 * time.Second

// annotationSelectedNode is the scheduler's, on a claim: the node of the pod that waits for the claim.
const annotationSelectedNode = "volume.kubernetes.io/selected-node"

// volumePlace is which nodes reach an object's volume.
type volumePlace struct {
	// nodes are those; nil: all of them, as far as is known.
	nodes *corev1.NodeSelector
	// preferred: all others reach it, too, over the network.
	preferred bool
}

// isReachable says whether this handler may take an object: whether a pod on its node reaches the volume and the storage of its location. If no
// node that takes pods reaches it, every handler may, and the exposure or the pod says what is wrong. wait is when to look again.
func (m *Mover) isReachable(ctx context.Context, o client.Object, v *Object, self *corev1.Node, current *settings.Settings) (ok bool, wait time.Duration, err error) {
	volume, wait, err := m.placeOf(ctx, o, v)
	if err != nil || wait > 0 {
		return false, wait, err
	}
	storage, err := m.placeOfStorage(ctx, v)
	if err != nil {
		return false, 0, err
	}
	if storage == nil && selects(volume.nodes, self) {
		return true, 0, nil
	}
	nodes, err := m.listNodes(ctx)
	if err != nil {
		return false, 0, err
	}
	away, now := m.handlers.away(), m.Clock.Now()
	lost := func(n *corev1.Node) bool { return away.lost(n.Name, now) }
	if mayTake(self, nodesThatTake(nodes, volume, storage, current, lost), volume, storage) {
		return true, 0, nil
	}
	return false, away.nextLoss(now), nil
}

// nodesThatTake returns the nodes that take pods and whose handlers take objects: by the settings, some never do. If no other one will do for
// volume and storage, they count all the same, so that the object waits for the settings, or for the storage. A node whose handler is lost
// does not count: what only such nodes reach is for every handler to take, and its pod still runs there.
func nodesThatTake(nodes []*corev1.Node, volume volumePlace, storage *storagePlace, current *settings.Settings, lost func(*corev1.Node) bool) []*corev1.Node {
	nodes = slices.DeleteFunc(slices.Clone(nodes), func(n *corev1.Node) bool { return !takesPods(n, current.Pod.Tolerations) })
	able := nodesThatMayTake(nodes, current)
	if slices.ContainsFunc(able, func(n *corev1.Node) bool { return (volume.preferred || selects(volume.nodes, n)) && storage.selects(n) }) {
		return slices.DeleteFunc(able, lost)
	}
	return nodes
}

// nodesThatMayTake returns the nodes that take pods, and may take objects by the settings.
func nodesThatMayTake(nodes []*corev1.Node, current *settings.Settings) []*corev1.Node {
	return slices.DeleteFunc(slices.Clone(nodes), func(n *corev1.Node) bool {
		return !takesPods(n, current.Pod.Tolerations) || current.PerNode(n.Labels) == 0
	})
}

// mayTake decides for a handler among the nodes that take pods. For a storage of one node all handlers choose the same one. A volume that
// every node reaches goes to where the storage is.
func mayTake(self *corev1.Node, nodes []*corev1.Node, volume volumePlace, storage *storagePlace) bool {
	reachesVolume := func(n *corev1.Node) bool { return selects(volume.nodes, n) }
	reachesBoth := func(n *corev1.Node) bool { return reachesVolume(n) && storage.selects(n) }
	switch {
	case slices.ContainsFunc(nodes, reachesBoth):
	case volume.preferred && slices.ContainsFunc(nodes, storage.selects):
		reachesBoth = storage.selects
	default:
		return reachesVolume(self) || !slices.ContainsFunc(nodes, reachesVolume)
	}
	if storage == nil || !storage.oneNode {
		return reachesBoth(self)
	}
	var chosen *corev1.Node
	for _, n := range nodes {
		if reachesBoth(n) && (chosen == nil || orderOfNode(n) < orderOfNode(chosen)) {
			chosen = n
		}
	}
	return chosen.Name == self.Name
}

// nodesElsewhere returns the nodes that the object's pod may run on if that is not this one: because this one does not reach the volume, or not
// the storage, and others reach both.
func (p *pass) nodesElsewhere(ctx context.Context, volume *Volume) (*corev1.NodeSelector, error) {
	self, err := p.findNode(ctx, p.NodeName)
	if err != nil || self == nil {
		return nil, err
	}
	storage, err := p.placeOfStorage(ctx, &p.in.Object)
	if err != nil {
		return nil, err
	}
	nodes, err := p.listNodes(ctx)
	if err != nil {
		return nil, err
	}
	if storage != nil {
		both := bothOf(volume.NodeAffinity, storage.nodes)
		if !selects(both, self) && slices.ContainsFunc(nodes, func(n *corev1.Node) bool { return selects(both, n) }) {
			return both, nil
		}
	}
	if selects(volume.NodeAffinity, self) {
		return nil, nil //nolint:nilnil // the pod runs here
	}
	return volume.NodeAffinity, nil
}

// placeOf returns which nodes reach an object's volume.
func (m *Mover) placeOf(ctx context.Context, o client.Object, v *Object) (volumePlace, time.Duration, error) {
	switch o := o.(type) {
	case *velerov2.DataUpload:
		if node, err := m.nodeOfMachine(ctx, o); err != nil || node != "" {
			return volumePlace{nodes: nodeNamed(node), preferred: true}, 0, err
		}
		claim, err := m.findClaim(ctx, o.Spec.SourceNamespace, o.Spec.SourcePVC)
		if err != nil || claim == nil || claim.Spec.VolumeName == "" {
			return volumePlace{}, 0, err
		}
		volume, err := reconcile.Find(ctx, m.Live, types.NamespacedName{Name: claim.Spec.VolumeName}, &corev1.PersistentVolume{})
		if err != nil || volume == nil || volume.Spec.NodeAffinity == nil {
			return volumePlace{}, 0, err
		}
		// What is in a backup of a machine comes over the network.
		return volumePlace{nodes: volume.Spec.NodeAffinity.Required, preferred: o.Spec.SnapshotType == velerov2.SnapshotMachineBackup}, 0, nil
	case *velerov2.DataDownload:
		if datamove.ReadsDefinition(o.Spec.DataMoverConfig) {
			return volumePlace{}, 0, nil
		}
		claim, err := m.findClaim(ctx, o.Spec.TargetVolume.Namespace, o.Spec.TargetVolume.PVC)
		if err != nil {
			return volumePlace{}, 0, err
		}
		if claim == nil {
			return volumePlace{}, max(0, targetWait-m.Clock.Since(v.Created)), nil
		}
		if node := claim.Annotations[annotationSelectedNode]; node != "" {
			return volumePlace{nodes: nodeNamed(node)}, 0, nil
		}
	}
	return volumePlace{}, 0, nil
}

// nodeOfMachine returns the node of the running machine whose disk a DataUpload moves, or "": its launcher need not send the disk over the
// network.
func (m *Mover) nodeOfMachine(ctx context.Context, o *velerov2.DataUpload) (string, error) {
	config := o.Spec.DataMoverConfig
	if o.Spec.SnapshotType != velerov2.SnapshotMachineBackup || datamove.ReadsEndpoints(config) || config[datamove.ConfigMachine] == "" {
		return "", nil
	}
	key := types.NamespacedName{Namespace: o.Spec.SourceNamespace, Name: config[datamove.ConfigMachine]}
	instance, err := reconcile.Find(ctx, m.Live, key, &kubevirtv1.VirtualMachineInstance{})
	if err != nil || instance == nil {
		return "", err
	}
	return instance.Status.NodeName, nil
}

func (m *Mover) findClaim(ctx context.Context, namespace, name string) (*corev1.PersistentVolumeClaim, error) {
	return reconcile.Find(ctx, m.Live, types.NamespacedName{Namespace: namespace, Name: name}, &corev1.PersistentVolumeClaim{})
}
