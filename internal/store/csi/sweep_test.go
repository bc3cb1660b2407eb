package csi_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubernetesfake "k8s.io/client-go/kubernetes/fake"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/store/csi"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/diskset"
	"github.com/varvebackup/varve/internal/store/names"
)

// Only what nobody has written goes, and only if nobody waits for it.
func TestSweepVolumes_keepsWhatMayBeOfUse(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	if err := longhornv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	builder := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&longhornv1.Volume{},
		&longhornv1.Replica{})
	add := func(name, node, onDisk, state, claim string) {
		meta := metav1.ObjectMeta{Namespace: "varve", Name: name}
		builder.WithObjects(&longhornv1.Volume{
			ObjectMeta: meta,
			Status: longhornv1.VolumeStatus{
				KubernetesStatus: longhornv1.KubernetesStatus{PVName: name, Namespace: "default", PVCName: claim},
			},
		}, &longhornv1.Replica{
			ObjectMeta: meta, Spec: longhornv1.ReplicaSpec{NodeID: node, DiskID: onDisk},
			Status: longhornv1.ReplicaStatus{CurrentState: state},
		})
	}
	starting := longhornv1.ReplicaStarting
	add("pvc-orphan", nodeName, diskUUID, starting, "gone")
	add("pvc-orphan-without-status", nodeName, diskUUID, "", "gone")
	add("pvc-of-an-earlier-claim", nodeName, diskUUID, starting, "claim")
	add("pvc-waiting", nodeName, diskUUID, starting, "claim")
	add("pvc-with-a-volume", nodeName, diskUUID, starting, "gone")
	add("pvc-with-a-head", nodeName, diskUUID, starting, "gone")
	add("pvc-stopped", nodeName, diskUUID, longhornv1.ReplicaStopped, "gone")
	add("pvc-of-another-node", "node2", diskUUID, starting, "gone")
	add("pvc-on-a-closed-disk", nodeName, "disk-2", starting, "gone")
	add("pvc-without-a-claim", nodeName, diskUUID, starting, "")
	for _, name := range []string{
		"pvc-unwritten", "pvc-unwritten-clone", "pvc-unwritten-with-a-volume", "pvc-unwritten-with-a-snapshot",
		"pvc-damaged",
	} {
		add(name, nodeName, diskUUID, longhornv1.ReplicaStopped, "gone")
	}
	addVolume := func(name, claim string) {
		builder.WithObjects(&longhornv1.Volume{ObjectMeta: metav1.ObjectMeta{
			Namespace: "varve", Name: name, Annotations: map[string]string{"store.varvebackup.io/claim": claim},
		}})
	}
	addVolume("pvc-without-a-replica", "default/gone")
	addVolume("pvc-waiting-without-a-replica", "default/claim-2")
	addVolume("pvc-with-a-head-without-a-replica", "default/gone")
	c := builder.Build()
	files := &memory{objects: map[disk.Name]disk.Object{
		"image/a": {Name: "image/a", UID: "image-1", Kind: disk.KindImage, State: disk.StateReady},
		"snap":    {Name: "snap", UID: "snapshot-1", Kind: disk.KindSnapshot, State: disk.StateReady},
	}, written: map[disk.Name]bool{names.Head("pvc-with-a-head"): true}}
	for handle, parent := range map[string]disk.UID{
		"pvc-with-a-head": "", "pvc-unwritten": "", "pvc-unwritten-clone": "image-1", "pvc-unwritten-with-a-volume": "",
		"pvc-unwritten-with-a-snapshot": "snapshot-1", "pvc-damaged": "", "pvc-with-a-head-without-a-replica": "",
	} {
		o := disk.Object{Name: names.Head(handle), Kind: disk.KindHead, State: disk.StateWritable, Parent: parent}
		if handle == "pvc-damaged" {
			o.State = disk.StateDamaged
		}
		files.objects[o.Name] = o
	}
	disks := &diskset.Set{}
	disks.Put(diskset.Disk{Name: "default-disk", UUID: diskUUID, Disk: files})
	d := csi.New(csi.Options{
		Node: nodeName, Namespace: "varve", Disks: disks, Client: c, Kubernetes: kubernetesfake.NewClientset(
			&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "claim", UID: "waiting"}},
			&corev1.PersistentVolumeClaim{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "claim-2", UID: "waiting-without-a-replica"},
			},
			&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-with-a-volume"}},
			&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-unwritten-with-a-volume"}},
		),
	})
	if err := csi.SweepVolumes(d, t.Context()); err != nil {
		t.Fatal(err)
	}
	var volumes longhornv1.VolumeList
	var replicas longhornv1.ReplicaList
	if err := errors.Join(c.List(t.Context(), &volumes), c.List(t.Context(), &replicas)); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"pvc-damaged", "pvc-of-another-node", "pvc-on-a-closed-disk", "pvc-stopped", "pvc-unwritten-with-a-snapshot",
		"pvc-unwritten-with-a-volume", "pvc-waiting", "pvc-with-a-head", "pvc-with-a-volume", "pvc-without-a-claim",
	}
	if diff := cmp.Diff(want, namesOf(replicas.Items)); diff != "" {
		t.Errorf("Replicas (-want +got):\n%s", diff)
	}
	want = append(want, "pvc-waiting-without-a-replica", "pvc-with-a-head-without-a-replica")
	slices.Sort(want)
	if diff := cmp.Diff(want, namesOf(volumes.Items)); diff != "" {
		t.Errorf("Volumes (-want +got):\n%s", diff)
	}
}

// namesOf returns the names of objects.
func namesOf[T any, P interface {
	*T
	client.Object
}](objects []T) []string {
	var all []string
	for i := range objects {
		all = append(all, P(&objects[i]).GetName())
	}
	return all
}
