package virtualmachineexport

import (
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/varvebackup/varve/internal/export/podspec"
	"github.com/varvebackup/varve/test/gen"
)

// An export pod runs in a user's namespace and parses what clients send.
func TestPod_isUnprivileged(t *testing.T) {
	t.Parallel()
	for name, in := range map[string]*input{"claim": claimInput(), "machine": machineInput(), "backup": backupInput()} {
		pod := exportPod(in.Export, in.Source, "token", Image{Name: "varve"})
		s, c := pod.Spec.SecurityContext, pod.Spec.Containers[0]
		if len(pod.Spec.Containers) != 1 || len(pod.Spec.InitContainers) > 0 || pod.Spec.HostNetwork || pod.Spec.HostPID || pod.Spec.HostIPC {
			t.Errorf("%s: %+v", name, pod.Spec)
		}
		if !ptr.Deref(s.RunAsNonRoot, false) || ptr.Deref(s.RunAsUser, 0) == 0 || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault ||
			ptr.Deref(pod.Spec.AutomountServiceAccountToken, true) || ptr.Deref(pod.Spec.EnableServiceLinks, true) {
			t.Errorf("%s: %+v", name, s)
		}
		if !ptr.Deref(c.SecurityContext.ReadOnlyRootFilesystem, false) || ptr.Deref(c.SecurityContext.AllowPrivilegeEscalation, true) ||
			ptr.Deref(c.SecurityContext.Privileged, true) || !cmp.Equal(c.SecurityContext.Capabilities, &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}) {
			t.Errorf("%s: %+v", name, c.SecurityContext)
		}
		for _, resource := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			if c.Resources.Requests.Name(resource, "").IsZero() || c.Resources.Limits.Name(resource, "").IsZero() {
				t.Errorf("%s: %+v", name, c.Resources)
			}
		}
		if get := c.ReadinessProbe.HTTPGet; get.Scheme != corev1.URISchemeHTTPS || get.Path != podspec.ReadinessPath || get.Port.IntValue() != podspec.HTTPSPort {
			t.Errorf("%s: readiness %+v", name, get)
		}
	}
}

// What is mounted is what the pod needs, and nothing can be written.
func TestPod_mountsAreReadOnly(t *testing.T) {
	t.Parallel()
	claims := claimInput()
	block := boundClaim("device.1")
	gen.SetVolumeMode(corev1.PersistentVolumeBlock)(block)
	volumes(claims).claims = append(volumes(claims).claims, claim{name: "device.1", object: block})
	for name, c := range map[string]struct {
		in   *input
		want map[string]string
	}{
		"claims": {claims, map[string]string{
			"/run/varve/export/certificate": "secret virt-export-web-cert [tls.crt tls.key]", "/run/varve/export/token": "secret mine [token]",
			"/run/varve/export/volumes/disk": "claim disk", "/dev/varve-export/device.1": "claim device.1",
		}},
		"machine": {machineInput(), map[string]string{
			"/run/varve/export/certificate": "secret virt-export-web-cert [tls.crt tls.key]", "/run/varve/export/token": "secret mine [token]",
			"/run/varve/export/manifests": "secret virt-export-web-manifests [internal.json external.json]", "/run/varve/export/volumes/disk": "claim disk",
		}},
		"backup": {backupInput(), map[string]string{
			"/run/varve/export/certificate": "secret virt-export-b-cert [tls.crt tls.key]", "/run/varve/export/token": "secret mine [token]",
			"/run/varve/export/tunnel": "secret backup-tunnel-b [token]",
		}},
	} {
		pod := exportPod(c.in.Export, c.in.Source, "mine", Image{Name: "varve"})
		what := map[string]string{}
		for _, v := range pod.Spec.Volumes {
			switch {
			case v.Secret != nil:
				what[v.Name] = "secret " + v.Secret.SecretName + " ["
				for i, item := range v.Secret.Items {
					if i > 0 {
						what[v.Name] += " "
					}
					what[v.Name] += item.Path
				}
				what[v.Name] += "]"
			case v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ReadOnly:
				what[v.Name] = "claim " + v.PersistentVolumeClaim.ClaimName
			}
			if !regexp.MustCompile("^[a-z0-9-]{1,63}$").MatchString(v.Name) {
				t.Errorf("%s: volume %q", name, v.Name)
			}
		}
		got := map[string]string{}
		for _, m := range pod.Spec.Containers[0].VolumeMounts {
			if !m.ReadOnly {
				t.Errorf("%s: %s can be written", name, m.MountPath)
			}
			got[m.MountPath] = what[m.Name]
		}
		for _, d := range pod.Spec.Containers[0].VolumeDevices {
			got[d.DevicePath] = what[d.Name]
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		config, err := podspec.Decode(configIn(pod))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if name == "claims" && !cmp.Equal(config.Volumes, []podspec.Volume{{Name: "disk", Path: "/run/varve/export/volumes/disk/disk.img"}, {Name: "device.1", Path: "/dev/varve-export/device.1"}}) {
			t.Errorf("%+v", config.Volumes)
		}
	}
}

// The tunnel should not cross the network twice.
func TestPod_ofABackupPrefersTheGuestsNode(t *testing.T) {
	t.Parallel()
	in := backupInput()
	terms := exportPod(in.Export, in.Source, "t", Image{}).Spec.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution
	if len(terms) != 1 || terms[0].Preference.MatchFields[0].Values[0] != "node-1" {
		t.Errorf("%+v", terms)
	}
	offered(in).offer.Node = ""
	if a := exportPod(in.Export, in.Source, "t", Image{}).Spec.Affinity; a != nil {
		t.Errorf("%+v", a)
	}
}

func TestToken_isRandom(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for range 100 {
		token := newToken()
		if !regexp.MustCompile("^[a-zA-Z0-9]{20}$").MatchString(token) || seen[token] {
			t.Fatalf("%q", token)
		}
		seen[token] = true
	}
}
