package storageplace

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/location"
)

// Where the claim of a location can be used is where images are restored and backed up.
func TestRead(t *testing.T) {
	t.Parallel()
	claim := func(name string, mode corev1.PersistentVolumeAccessMode) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "varve", Name: name},
			Spec: corev1.PersistentVolumeClaimSpec{
				VolumeName: name, AccessModes: []corev1.PersistentVolumeAccessMode{mode},
			},
		}
	}
	local := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "local"}}
	local.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{
			Key: "kubernetes.io/hostname", Operator: corev1.NodeSelectorOpIn, Values: []string{"b"},
		}}}},
	}}
	node := func(name string) *corev1.Node {
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/hostname": name}},
		}
	}
	pod := func(name, storage, on string, phase corev1.PodPhase) *corev1.Pod {
		s := datamove.Storage{Volume: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: storage},
		}}
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "varve", Name: name, Labels: map[string]string{
				datamove.LabelStorage: s.Label(),
			}},
			Spec: corev1.PodSpec{NodeName: on}, Status: corev1.PodStatus{Phase: phase},
		}
	}
	objects := []client.Object{
		node("a"), node("b"), local, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "network"}},
		claim("local", corev1.ReadWriteOnce), claim("network", corev1.ReadWriteOnce), claim("shared", corev1.ReadWriteMany),
		claim("pod", corev1.ReadWriteOncePod), pod("1", "network", "a", corev1.PodSucceeded),
		pod("2", "network", "", corev1.PodPending), pod("3", "network", "b", corev1.PodRunning),
		pod("4", "shared", "b", corev1.PodRunning),
	}
	live := fake.NewClientBuilder().WithObjects(objects...).Build()
	onlyB := map[string]bool{"a": false, "b": true}
	for name, c := range map[string]struct {
		provider, bucket string
		want             Place
	}{
		"local":         {location.ProviderClaim, "local", Place{Nodes: onlyB}},
		"network":       {location.ProviderClaim, "network", Place{InUse: "b"}},
		"shared":        {location.ProviderClaim, "shared", Place{}},
		"no claim":      {location.ProviderClaim, "none", Place{}},
		"another claim": {location.ProviderClaim, "pod", Place{}},
		"no bucket":     {location.ProviderClaim, "", Place{}},
		"a bucket":      {"aws", "local", Place{}},
	} {
		l := &velerov1.BackupStorageLocation{}
		l.Spec.Provider = c.provider
		l.Spec.ObjectStorage = &velerov1.ObjectStorageLocation{Bucket: c.bucket}
		got, err := Read(t.Context(), live, "varve", l)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	network := Place{InUse: "b"}
	if network.Compare("b", "a") >= 0 || network.Compare("a", "b") <= 0 || network.Compare("a", "c") != 0 {
		t.Error("the node that uses the storage is not the first one")
	}
}
