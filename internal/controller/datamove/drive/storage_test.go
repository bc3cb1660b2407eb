//go:build controlplane

package drive

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/location"
	"github.com/varvebackup/varve/test/controlplane"
)

// shelf makes a location that is a claim in Varve's namespace, bound to a volume on nodes with the label.
func (w *world) shelf(label string, mode corev1.PersistentVolumeAccessMode) {
	w.t.Helper()
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	w.create(&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "shelf-" + w.varve}, Spec: corev1.PersistentVolumeSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{mode}, Capacity: size,
		PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/shelf"}},
		NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: label, Operator: corev1.NodeSelectorOpExists}},
		}}}},
	}})
	w.create(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: w.varve, Name: "shelf"}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{mode}, VolumeName: "shelf-" + w.varve, StorageClassName: ptr.To(""),
		Resources: corev1.VolumeResourceRequirements{Requests: size},
	}})
	w.create(&velerov1.BackupStorageLocation{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "shelf"},
		Spec: velerov1.BackupStorageLocationSpec{
			Provider: location.ProviderClaim, StorageType: velerov1.StorageType{ObjectStorage: &velerov1.ObjectStorageLocation{Bucket: "shelf"}},
		},
	})
	w.storage = &datamove.Storage{
		Volume:  corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "shelf"}},
		OneNode: mode == corev1.ReadWriteOnce,
	}
}

func (w *world) labelledNode(label string) string {
	w.t.Helper()
	name := w.node()
	controlplane.Update(w.t, w.admin, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, false, func(n *corev1.Node) {
		metav1.SetMetaDataLabel(&n.ObjectMeta, label, "")
	})
	return name
}

// A location on a claim that one node can use at a time is used by the pods of one node.
func TestClaimLocation_hasPodsOnOneNode(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "concurrency: {perNode: 6}")
	done := w.report
	w.set(func() { w.report = func(client.Object) *datamove.Report { return nil } })
	label := "shelf-" + w.varve
	w.shelf(label, corev1.ReadWriteOnce)
	for range 3 {
		w.labelledNode(label)
	}
	w.nodeAndDriver()
	var uploads []*velerov2.DataUpload
	for i := range 6 {
		uploads = append(uploads, w.upload(fmt.Sprintf("b%d", i), onShelf))
	}
	drivers := map[string]bool{}
	for _, o := range uploads {
		pod := w.untilPod(o, func(p *corev1.Pod) bool { return p.Spec.NodeName != "" })
		drivers[pod.Spec.NodeName] = true
		checkStorage(t, pod, true)
	}
	if len(drivers) != 1 {
		t.Errorf("pods on %v", drivers)
	}
	w.set(func() { w.report = done })
	for _, o := range uploads {
		w.untilPhase(o, velerov2.PhaseCompleted)
	}
}

// What uses the claim already says where it can be used, though another node would be chosen.
func TestClaimLocation_followsWhoUsesIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	label := "shelf-" + w.varve
	w.shelf(label, corev1.ReadWriteOnce)
	var nodes []*corev1.Node
	for range 2 {
		name := w.labelledNode(label)
		nodes = append(nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	other := nodes[0]
	if compareNodes(nodes[1], other) > 0 {
		other = nodes[1]
	}
	w.set(func() { w.deadNodes[other.Name] = true }) // nobody ends the pod, nor starts what follows
	user := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.varve, Name: "maintenance", Labels: map[string]string{datamove.LabelStorage: w.storage.Label()}},
		Spec:       corev1.PodSpec{NodeName: other.Name, Containers: []corev1.Container{{Name: "x", Image: "x"}}},
	}
	if err := cluster.Client(t, controlplane.Controller).Create(t.Context(), user); err != nil {
		t.Fatal(err)
	}
	w.driver()
	o := w.upload("b1", onShelf)
	if pod := w.untilPod(o, func(p *corev1.Pod) bool { return p.Spec.NodeName != "" }); pod.Spec.NodeName != other.Name {
		t.Errorf("the pod is on %s, and the claim on %s", pod.Spec.NodeName, other.Name)
	}
}

// A pod that replaces another one in the middle has its storage.
func TestClaimLocation_isMountedByAPodThatReplacesAnother(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	done := w.report
	w.set(func() { w.report = func(client.Object) *datamove.Report { return nil } })
	label := "shelf-" + w.varve
	w.shelf(label, corev1.ReadWriteOnce)
	w.labelledNode(label)
	w.driver()
	o := w.upload("b1", onShelf)
	w.untilPhase(o, velerov2.PhaseInProgress)
	first := w.untilPod(o, func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
	if err := w.admin.Delete(t.Context(), first, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	checkStorage(t, w.untilPod(o, func(p *corev1.Pod) bool { return p.UID != first.UID }), true)
	w.set(func() { w.report = done })
	w.untilPhase(o, velerov2.PhaseCompleted)
}

// A claim for many nodes keeps nobody together.
func TestClaimLocation_ofManyNodes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	done := w.report
	w.set(func() { w.report = func(client.Object) *datamove.Report { return nil } })
	label := "shelf-" + w.varve
	w.shelf(label, corev1.ReadWriteMany)
	w.labelledNode(label)
	w.nodeAndDriver() // without the label
	o := w.upload("b1", onShelf)
	checkStorage(t, w.untilPod(o, func(p *corev1.Pod) bool { return p.Spec.NodeName != "" }), false)
	w.set(func() { w.report = done })
	w.untilPhase(o, velerov2.PhaseCompleted)
}

func onShelf(o *velerov2.DataUpload) { o.Spec.BackupStorageLocation = "shelf" }

func checkStorage(t *testing.T, pod *corev1.Pod, oneNode bool) {
	t.Helper()
	mounted := false
	for _, m := range pod.Spec.Containers[0].VolumeMounts {
		mounted = mounted || m.MountPath == datamove.StorageDirectory
	}
	if !mounted || (pod.Labels[datamove.LabelStorage] != "") != oneNode || (pod.Spec.Affinity.PodAffinity != nil) != oneNode {
		t.Errorf("mounted %v, labels %v, affinity %v", mounted, pod.Labels, pod.Spec.Affinity)
	}
}
