package agent

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/names"
)

// volumeOf returns the handle of the volume whose head an object is. Volumes in which images are made or from which
// they are read do not count.
func volumeOf(o disk.Object) (handle string, ok bool) {
	handle, ok = names.IsHead(o.Name)
	return handle, ok && o.Kind == disk.KindHead && !names.IsOfImage(handle)
}

// findReplicas notes which volumes have a Replica, every heartbeatInterval. The head of a volume that is being deleted
// outlives its Replica for a moment, so a head counts as one without a Replica only when it had none twice in a row.
func (a *agent) findReplicas(ctx context.Context, states []*diskState) {
	if a.Clock.Since(a.replicasFoundAt) < heartbeatInterval {
		return
	}
	var replicas longhornv1.ReplicaList
	if err := a.live.List(ctx, &replicas, client.InNamespace(a.Namespace)); err != nil {
		a.Logger.Warn("the store does not know which volumes have no Replica any more", "error", err)
		return
	}
	a.replicasFoundAt = a.Clock.Now()
	known := map[string]bool{}
	a.otherNodes = map[string]string{}
	for i := range replicas.Items {
		r := &replicas.Items[i]
		known[r.Name] = true
		if r.Spec.NodeID != "" && r.Spec.NodeID != a.Node {
			a.otherNodes[r.Name] = r.Spec.NodeID
		}
	}
	without := map[string]int{}
	for _, s := range states {
		for _, o := range s.objects {
			if handle, ok := volumeOf(o); ok && !known[handle] {
				without[handle] = min(a.withoutReplica[handle]+1, 2)
			}
		}
	}
	a.withoutReplica = without
}

// describeHeads names the heads of volumes that have no Replica, because somebody gave up their node or disk, or made
// the cluster anew, and of volumes that belong to another node. A PersistentVolume cannot change its node, so that a
// disk that moves does not take its volumes along.
func (a *agent) describeHeads(objects []disk.Object) (notes []string) {
	var lost, elsewhere []string
	for _, o := range objects {
		handle, ok := volumeOf(o)
		switch node := a.otherNodes[handle]; {
		case ok && a.withoutReplica[handle] > 1:
			lost = append(lost, string(o.Name))
		case ok && node != "":
			elsewhere = append(elsewhere, fmt.Sprintf("%s (node %s)", o.Name, node))
		}
	}
	if len(lost) > 0 {
		notes = append(notes, fmt.Sprintf("of volumes that no Replica has, so that they stay unless their PersistentVolumes "+
			"are deleted or the annotation %s of the Node has their names (pvc-…): %s", longhornv1.AnnotationDeleteOrphans,
			names.ListSome(lost)))
	}
	if len(elsewhere) > 0 {
		notes = append(notes, "of volumes whose PersistentVolumes are bound to another node, so that pods use them, and "+
			"Varve deletes them, only there (move the disk back, or restore them from backups): "+names.ListSome(elsewhere))
	}
	return notes
}

// confirmLost asks the API server itself whether a volume has no object at all. Only a volume that is named after its
// PersistentVolume can be looked up.
func (a *agent) confirmLost(ctx context.Context, handle string) error {
	if !strings.HasPrefix(handle, "pvc-") {
		return errclass.Errorf(errclass.Conflict, "nobody can tell which PersistentVolume it belongs to")
	}
	meta := metav1.ObjectMeta{Namespace: a.Namespace, Name: handle}
	for _, x := range []struct {
		kind string
		o    client.Object
	}{
		{"Replica", &longhornv1.Replica{ObjectMeta: meta}},
		{"Volume", &longhornv1.Volume{ObjectMeta: meta}},
		{"PersistentVolume", &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: handle}}},
	} {
		err := a.live.Get(ctx, client.ObjectKeyFromObject(x.o), x.o)
		switch {
		case err == nil:
			return errclass.Errorf(errclass.Conflict, "%s %s is there: delete it first", x.kind, handle)
		case !apierrors.IsNotFound(err):
			return fmt.Errorf("read %s %s: %w", x.kind, handle, err)
		}
	}
	return nil
}
