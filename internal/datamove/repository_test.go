package datamove

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Names are those of Secrets and Jobs, whose pods carry them as labels, and differ wherever what they stand for does.
func TestRepositoryNames_areLabelsAndDiffer(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("n", 63)
	seen := map[string]string{}
	for _, namespace := range []string{"shop", "shop2", long, long[1:]} {
		for _, location := range []Location{{Namespace: "velero", Name: "default"}, {Namespace: "varve", Name: "default"}, {Namespace: "velero", Name: "a." + long}} {
			repository := RepositoryName(namespace, location)
			for what, name := range map[string]string{"password": NamespacePasswordSecret(namespace, location), "job": MaintenanceJob(repository)} {
				key := what + " of " + namespace + " in " + location.String()
				if problems := validation.IsDNS1123Label(name); len(problems) > 0 && what == "job" {
					t.Errorf("%s: %s: %v", key, name, problems)
				}
				if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
					t.Errorf("%s: %s: %v", key, name, problems)
				}
				if seen[name] != "" {
					t.Errorf("%s is the name for %s and for %s", name, seen[name], key)
				}
				seen[name] = key
			}
			if name := LocationPasswordSecret(location); seen[name] != "" && seen[name] != location.String() {
				t.Errorf("%s is the name for %s and for %s", name, seen[name], location)
			} else {
				seen[name] = location.String()
			}
		}
	}
}

// What a pod gets mounted comes from an annotation: it must never be a directory of the node.
func TestDecodeVolume_takesClaimsAndExportsAlone(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		v  corev1.VolumeSource
		ok bool
	}{
		"claim":      {corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}, true},
		"export":     {corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: "s", Path: "/p"}}, true},
		"nothing":    {corev1.VolumeSource{}, false},
		"both":       {corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{}, PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{}}, false},
		"a host's":   {corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}, false},
		"both kinds": {corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{}, HostPath: &corev1.HostPathVolumeSource{Path: "/"}}, false},
	} {
		got, err := DecodeVolume(EncodeVolume(c.v))
		if (err == nil) != c.ok || c.ok && EncodeVolume(got) != EncodeVolume(c.v) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	if _, err := DecodeVolume("x"); err == nil {
		t.Error("it takes anything")
	}
}
