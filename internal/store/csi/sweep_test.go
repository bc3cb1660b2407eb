package csi_test

import (
	"errors"
	"slices"
	"testing"
	"time"

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

// A volume that an earlier installation of Varve has made, and that its PersistentVolume still names, gets Volume and
// Replica back.
func TestSweepVolumes_adoptsVolumesOfAnEarlierInstallation(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	if err := longhornv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	files := &memory{objects: map[disk.Name]disk.Object{
		names.Image("debian", "1"): {
			Name: names.Image("debian", "1"), UID: "1", Kind: disk.KindImage, State: disk.StateReady,
		},
		names.Image("ubuntu", "2"): {
			Name: names.Image("ubuntu", "2"), UID: "2", Kind: disk.KindImage, State: disk.StateReady,
		},
		"snap": {Name: "snap", UID: "snapshot-1", Parent: "1", Kind: disk.KindSnapshot, State: disk.StateReady},
	}}
	var kept []runtime.Object
	add := func(handle string, parent disk.UID, edit func(*corev1.PersistentVolume)) {
		files.put(disk.Object{
			Name: names.Head(handle), UID: disk.UID(handle), Volume: disk.UID(handle), Parent: parent, Kind: disk.KindHead,
			Bytes: 3 * mib, State: disk.StateWritable,
		})
		pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: handle}}
		pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "app", Name: "claim"}
		pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{
			Driver: names.Driver, VolumeHandle: handle, VolumeAttributes: map[string]string{names.ContextDisk: diskUUID},
		}
		pv.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{
				Key: names.TopologyNode, Operator: corev1.NodeSelectorOpIn, Values: []string{nodeName},
			}}}},
		}}
		edit(pv)
		kept = append(kept, pv)
	}
	same := func(*corev1.PersistentVolume) {}
	add("pvc-blank", "", same)
	add("pvc-clone", "1", same)
	add("pvc-clone-of-a-snapshot", "snapshot-1", same)
	add("pvc-clone-of-an-image-of-before", "2", same)
	add("pvc-retained", "", func(pv *corev1.PersistentVolume) { pv.Spec.ClaimRef = nil })
	add("pvc-being-deleted", "", func(pv *corev1.PersistentVolume) {
		pv.DeletionTimestamp, pv.Finalizers = &metav1.Time{Time: time.Unix(1, 0)}, []string{"a/b"}
	})
	add("pvc-of-another-driver", "", func(pv *corev1.PersistentVolume) { pv.Spec.CSI.Driver = "other" })
	add("pvc-on-another-disk", "", func(pv *corev1.PersistentVolume) {
		pv.Spec.CSI.VolumeAttributes[names.ContextDisk] = "disk-2"
	})
	add("pvc-on-another-node", "", func(pv *corev1.PersistentVolume) {
		pv.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values[0] = "node2"
	})
	add("pvc-without-a-volume", "", func(pv *corev1.PersistentVolume) { pv.Name = "pvc-other" })
	add(names.SourceHandle("3"), "", same)
	image := func(name, uuid string) *longhornv1.BackingImage {
		return &longhornv1.BackingImage{
			ObjectMeta: metav1.ObjectMeta{Namespace: "varve", Name: name}, Status: longhornv1.BackingImageStatus{UUID: uuid},
		}
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(image("debian", "1"), image("ubuntu", "other")).Build()
	disks := &diskset.Set{}
	disks.Put(diskset.Disk{Name: "default-disk", UUID: diskUUID, Disk: files})
	d := csi.New(csi.Options{
		Node: nodeName, Namespace: "varve", Disks: disks, Client: c, Kubernetes: kubernetesfake.NewClientset(kept...),
	})
	for range 2 { // the second time there is nothing to do
		if err := csi.SweepVolumes(d, t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	var volumes longhornv1.VolumeList
	var replicas longhornv1.ReplicaList
	if err := errors.Join(c.List(t.Context(), &volumes), c.List(t.Context(), &replicas)); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"pvc-blank": "", "pvc-clone": "debian", "pvc-clone-of-a-snapshot": "debian", "pvc-clone-of-an-image-of-before": "",
		"pvc-retained": "",
	}
	got := map[string]string{}
	for _, r := range replicas.Items {
		got[r.Name] = r.Spec.BackingImage
		if r.Spec.NodeID != nodeName || r.Spec.DiskID != diskUUID || r.Spec.VolumeSize != 3*mib {
			t.Errorf("Replica %+v", r.Spec)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the images of Replicas (-want +got):\n%s", diff)
	}
	clear(got)
	for _, v := range volumes.Items {
		got[v.Name] = v.Spec.BackingImage
		claim, retained := v.Annotations[names.ClaimAnnotation], v.Name == "pvc-retained"
		if v.Spec.Size != 3*mib || (claim == "app/claim") == retained {
			t.Errorf("Volume %s of claim %q: %+v", v.Name, claim, v.Spec)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the images of Volumes (-want +got):\n%s", diff)
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
