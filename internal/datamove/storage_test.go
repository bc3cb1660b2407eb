package datamove

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// What a pod gets mounted comes from an annotation: it must never be a directory of the node.
func TestDecodeStorage_takesClaimsAndExportsAlone(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		v  corev1.VolumeSource
		ok bool
	}{
		"claim":      {claimVolume(false), true},
		"export":     {corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: "s", Path: "/p"}}, true},
		"nothing":    {corev1.VolumeSource{}, false},
		"both":       {corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{}, PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{}}, false},
		"a host's":   {corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}, false},
		"both kinds": {corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{}, HostPath: &corev1.HostPathVolumeSource{Path: "/"}}, false},
	} {
		want := Storage{Volume: c.v, OneNode: true}.Encode()
		got, err := DecodeStorage(want)
		if (err == nil) != c.ok || c.ok && got.Encode() != want {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	if _, err := DecodeStorage("x"); err == nil {
		t.Error("it takes anything")
	}
}

// A token for the API server is never given away, and a pod has one thing or the other.
func TestStorage_identity(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		s  Storage
		ok bool
	}{
		"a token":            {Storage{Identity: &Identity{Audience: "sts.amazonaws.com"}}, true},
		"the environment":    {Storage{Identity: &Identity{}}, true},
		"the API server":     {Storage{Identity: &Identity{Audience: "https://kubernetes.default.svc"}}, false},
		"another audience":   {Storage{Identity: &Identity{Audience: "k3s"}}, false},
		"a claim as well":    {Storage{Volume: claimVolume(false), Identity: &Identity{Audience: "sts.amazonaws.com"}}, false},
		"a directory, too":   {Storage{Volume: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}, Identity: &Identity{}}, false},
		"two in an audience": {Storage{Identity: &Identity{Audience: "sts.x k3s"}}, false},
	} {
		if got, err := DecodeStorage(c.s.Encode()); (err == nil) != c.ok || c.ok && got.Encode() != c.s.Encode() {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	for _, audience := range []string{"", "sts.amazonaws.com"} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "x"}}}}
		Storage{Identity: &Identity{Audience: audience}}.Mount(&pod.ObjectMeta, &pod.Spec)
		if pod.Spec.ServiceAccountName != ServiceAccount || len(pod.Labels) > 0 {
			t.Errorf("%+v", pod)
		}
		if audience == "" {
			if len(pod.Spec.Volumes) > 0 {
				t.Errorf("%+v", pod.Spec.Volumes)
			}
			continue
		}
		token := pod.Spec.Volumes[0].Projected.Sources[0].ServiceAccountToken
		if token.Audience != audience || token.Path != IdentityToken || *token.ExpirationSeconds < 600 || pod.Spec.Containers[0].VolumeMounts[0].MountPath != IdentityDirectory {
			t.Errorf("%+v", pod.Spec)
		}
	}
}

func claimVolume(readOnly bool) corev1.VolumeSource {
	return corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "shelf", ReadOnly: readOnly}}
}

func TestClaimStorage_saysWhoCanUseIt(t *testing.T) {
	t.Parallel()
	claim := func(modes ...corev1.PersistentVolumeAccessMode) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "varve", Name: "shelf"}, Spec: corev1.PersistentVolumeClaimSpec{AccessModes: modes},
		}
	}
	edit := func(c *corev1.PersistentVolumeClaim, f func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
		f(c)
		return c
	}
	const once, pod, many, read = corev1.ReadWriteOnce, corev1.ReadWriteOncePod, corev1.ReadWriteMany, corev1.ReadOnlyMany
	for name, c := range map[string]struct {
		claim    *corev1.PersistentVolumeClaim
		readOnly bool
		oneNode  bool
		refusal  string
	}{
		"none":            {nil, false, false, "there is no claim varve/shelf"},
		"many":            {claim(many), false, false, ""},
		"many and once":   {claim(once, many), false, false, ""},
		"once":            {claim(once), false, true, ""},
		"once, read-only": {claim(once), true, true, ""},
		"what it asks for is not all": {edit(claim(once), func(c *corev1.PersistentVolumeClaim) {
			c.Status.AccessModes = []corev1.PersistentVolumeAccessMode{once, many}
		}), false, false, ""},
		"readers, read-only": {claim(read), true, false, ""},
		"readers and once":   {claim(read, once), false, true, ""},
		"readers":            {claim(read), false, false, "set spec.accessMode to ReadOnly"},
		"one pod":            {claim(pod), false, false, "ReadWriteOncePod"},
		"block":              {edit(claim(many), func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock) }), false, false, "volumeMode Block"},
		"lost":               {edit(claim(many), func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimLost }), false, false, "lost"},
		"deleted":            {edit(claim(many), func(c *corev1.PersistentVolumeClaim) { c.DeletionTimestamp = &metav1.Time{} }), false, false, "is being deleted"},
	} {
		s, err := ClaimStorage(claimVolume(c.readOnly), c.claim)
		if (err != nil) != (c.refusal != "") || err != nil && !strings.Contains(err.Error(), c.refusal) || s.OneNode != c.oneNode || err == nil && s.ReadOnly() != c.readOnly {
			t.Errorf("%s: %+v %v", name, s, err)
		}
		if strings.Contains(s.Remark(), "only one node") != c.oneNode {
			t.Errorf("%s: remark %q", name, s.Remark())
		}
	}
}

// Pods that share a claim of one node must find each other, whether they write to it or not.
func TestStorageMount_keepsPodsTogether(t *testing.T) {
	t.Parallel()
	for _, oneNode := range []bool{false, true} {
		for _, readOnly := range []bool{false, true} {
			pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "x"}}}}
			s := Storage{Volume: claimVolume(readOnly), OneNode: oneNode}
			s.Mount(&pod.ObjectMeta, &pod.Spec)
			mount := pod.Spec.Containers[0].VolumeMounts[0]
			if mount.MountPath != StorageDirectory || mount.ReadOnly != readOnly || pod.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly != readOnly {
				t.Errorf("%+v", pod.Spec)
			}
			if !oneNode {
				if pod.Spec.Affinity != nil || len(pod.Labels) > 0 {
					t.Error("pods are kept together for no reason")
				}
				continue
			}
			term := pod.Spec.Affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0]
			if term.TopologyKey != corev1.LabelHostname || term.LabelSelector.MatchLabels[LabelStorage] != pod.Labels[LabelStorage] ||
				pod.Labels[LabelStorage] != (Storage{Volume: claimVolume(!readOnly), OneNode: true}).Label() {
				t.Errorf("%+v, labels %v", term, pod.Labels)
			}
		}
	}
}
