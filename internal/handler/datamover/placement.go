package datamover

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/reconcile"
)

// targetWait is how long an object is left alone whose target claim does not exist yet: the claim says where it is needed.
const targetWait = 10 * time.Second

// annotationSelectedNode is the scheduler's, on a claim: the node of the pod that waits for the claim.
const annotationSelectedNode = "volume.kubernetes.io/selected-node"

// isReachable says whether this handler may take an object: whether a pod on its node reaches the volume. If no node that takes pods
// reaches it, every handler may, and the exposure says what is wrong. wait is when to look again.
func (m *Mover) isReachable(ctx context.Context, o client.Object, v *Object, self *corev1.Node, tolerations []corev1.Toleration) (ok bool, wait time.Duration, err error) {
	selector, wait, err := m.placeOf(ctx, o, v)
	if err != nil || wait > 0 {
		return false, wait, err
	}
	if ok, err := m.reachesStorage(ctx, v, selector, self, tolerations); err != nil || !ok {
		return false, 0, err
	}
	if selects(selector, self) {
		return true, 0, nil
	}
	nodes, err := m.listNodes(ctx)
	if err != nil {
		return false, 0, err
	}
	for _, n := range nodes {
		if takesPods(n, tolerations) && selects(selector, n) {
			return false, 0, nil
		}
	}
	return true, 0, nil
}

// placeOf returns the nodes that reach an object's volume; nil: all of them, as far as is known.
func (m *Mover) placeOf(ctx context.Context, o client.Object, v *Object) (*corev1.NodeSelector, time.Duration, error) {
	switch o := o.(type) {
	case *velerov2.DataUpload:
		if node, err := m.nodeOfMachine(ctx, o); err != nil || node != "" {
			return nodeNamed(node), 0, err
		}
		claim, err := m.findClaim(ctx, o.Spec.SourceNamespace, o.Spec.SourcePVC)
		if err != nil || claim == nil || claim.Spec.VolumeName == "" {
			return nil, 0, err
		}
		volume, err := reconcile.Find(ctx, m.Live, types.NamespacedName{Name: claim.Spec.VolumeName}, &corev1.PersistentVolume{})
		if err != nil || volume == nil || volume.Spec.NodeAffinity == nil {
			return nil, 0, err
		}
		return volume.Spec.NodeAffinity.Required, 0, nil
	case *velerov2.DataDownload:
		claim, err := m.findClaim(ctx, o.Spec.TargetVolume.Namespace, o.Spec.TargetVolume.PVC)
		if err != nil {
			return nil, 0, err
		}
		if claim == nil {
			return nil, max(0, targetWait-m.Clock.Since(v.Created)), nil
		}
		if node := claim.Annotations[annotationSelectedNode]; node != "" {
			return nodeNamed(node), 0, nil
		}
	}
	return nil, 0, nil
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
