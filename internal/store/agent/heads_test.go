//go:build !controlplane && !root

package agent

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/store/disk"
)

// headDisk has the heads of volumes.
type headDisk struct {
	*fakeDisk
	heads map[disk.Name]bool
}

func (h headDisk) List(ctx context.Context) (all []disk.Object, err error) {
	all, err = h.fakeDisk.List(ctx)
	for name := range h.heads {
		all = append(all, disk.Object{Name: name, Kind: disk.KindHead, Bytes: 1, State: disk.StateWritable})
	}
	return all, err
}

func (h headDisk) Delete(_ context.Context, name disk.Name) error {
	delete(h.heads, name)
	return nil
}

// A node that comes back after it was given up says which volumes it still has, and deletes only those that a user has
// named, and that have no object.
func TestAgent_reportsHeadsWithoutReplica(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newHangWorld(t)
		heads := map[disk.Name]bool{}
		for _, handle := range []string{"pvc-known", "pvc-lost", "pvc-named", "pvc-used", "pvc-half", "v-hash"} {
			heads[disk.Name("volume/"+handle)] = true
		}
		w.agent.openFiles = func(_ context.Context, dir string) (diskFiles, error) {
			if w.disks[dir] == w.disks["good"] {
				return w.disks[dir], nil
			}
			return headDisk{w.disks[dir], heads}, nil
		}
		meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "varve", Name: name} }
		for _, o := range []client.Object{
			&longhornv1.Replica{ObjectMeta: meta("pvc-known"), Spec: longhornv1.ReplicaSpec{NodeID: "node"}},
			&longhornv1.Volume{ObjectMeta: meta("pvc-half")},
			&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-used"}},
		} {
			if err := w.client.Create(t.Context(), o); err != nil {
				t.Fatal(err)
			}
		}
		w.look()
		if m := w.expect("at first", diskIsReady, diskIsReady, "good", "bad"); strings.Contains(m, "no Replica") {
			t.Errorf("a volume that is being deleted counts: %q", m)
		}
		time.Sleep(heartbeatInterval)
		w.look()
		const lost = "volume/pvc-half, volume/pvc-lost, volume/pvc-named, volume/pvc-used, volume/v-hash"
		if m := w.expect("later", diskIsReady, diskIsReady, "good", "bad"); !strings.HasSuffix(m, "(pvc-…): "+lost) {
			t.Errorf("%q", m)
		}
		var node longhornv1.Node
		if err := w.client.Get(t.Context(), client.ObjectKey{Namespace: "varve", Name: "node"}, &node); err != nil {
			t.Fatal(err)
		}
		node.Annotations = map[string]string{
			longhornv1.AnnotationDeleteOrphans: "pvc-known, pvc-named, pvc-used, pvc-half, v-hash",
		}
		if err := w.client.Update(t.Context(), &node); err != nil {
			t.Fatal(err)
		}
		w.look()
		if heads["volume/pvc-named"] || len(heads) != 5 {
			t.Errorf("left: %v", heads)
		}
		time.Sleep(heartbeatInterval)
		w.look()
		m := w.expect("afterwards", diskIsReady, diskIsReady, "good", "bad")
		for _, words := range []string{
			"volume/pvc-used is to be deleted, and cannot be yet: PersistentVolume pvc-used is there",
			"volume/pvc-half is to be deleted, and cannot be yet: Volume pvc-half is there", "volume/v-hash is to be",
		} {
			if !strings.Contains(m, words) {
				t.Errorf("%q does not say %q", m, words)
			}
		}
		w.agent.closeAll()
	})
}

// A disk that was moved here from another node names the volumes that no pod can use here.
func TestAgent_reportsVolumesOfAnotherNode(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newHangWorld(t)
		heads := map[disk.Name]bool{"volume/pvc-here": true, "volume/pvc-moved": true}
		w.agent.openFiles = func(_ context.Context, dir string) (diskFiles, error) {
			if w.disks[dir] == w.disks["good"] {
				return w.disks[dir], nil
			}
			return headDisk{w.disks[dir], heads}, nil
		}
		for handle, node := range map[string]string{"pvc-here": "node", "pvc-moved": "before"} {
			r := &longhornv1.Replica{ObjectMeta: metav1.ObjectMeta{Namespace: "varve", Name: handle}}
			r.Spec.NodeID = node
			if err := w.client.Create(t.Context(), r); err != nil {
				t.Fatal(err)
			}
		}
		w.look()
		m := w.expect("at first", diskIsReady, diskIsReady, "good", "bad")
		if !strings.HasSuffix(m, "(move the disk back, or restore them from backups): volume/pvc-moved (node before)") {
			t.Errorf("%q", m)
		}
		w.agent.closeAll()
	})
}
