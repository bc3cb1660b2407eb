package virtualmachineexport

import (
	"bytes"
	"encoding/json"
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	upstream "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	exportv1 "github.com/varvebackup/varve/api/export/v1beta1"
	"github.com/varvebackup/varve/internal/controller/backup/exportproxy"
	"github.com/varvebackup/varve/internal/export/podspec"
)

// manifestItems decodes the manifests of one way to the export into the types that their readers have.
func manifestItems(t *testing.T, in *input, link podspec.Link) (authorities corev1.ConfigMap, machine upstream.VirtualMachine, disks []cdiv1.DataVolume) {
	t.Helper()
	var list struct {
		APIVersion, Kind string
		Items            []json.RawMessage
	}
	text := manifestsSecret(in).Data[podspec.ManifestsKey(link)]
	if err := json.Unmarshal(text, &list); err != nil || list.APIVersion != "v1" || list.Kind != "List" || len(list.Items) < 2 {
		t.Fatalf("%s: %v", text, err)
	}
	decode := func(item []byte, into any) {
		t.Helper()
		strict := json.NewDecoder(bytes.NewReader(item))
		strict.DisallowUnknownFields()
		if err := strict.Decode(into); err != nil {
			t.Errorf("%s: %v", item, err)
		}
	}
	decode(list.Items[0], &authorities)
	decode(list.Items[1], &machine)
	for _, item := range list.Items[2:] {
		var disk cdiv1.DataVolume
		decode(item, &disk)
		disks = append(disks, disk)
	}
	return authorities, machine, disks
}

func TestManifests_bringTheMachineUpElsewhere(t *testing.T) {
	t.Parallel()
	in := machineInput()
	s := volumes(in)
	s.claims[0].object.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
	s.claims[0].object.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("5Gi")}
	s.vm.UID, s.vm.ResourceVersion, s.vm.Finalizers = "1", "2", []string{"varvebackup.io/machine"}
	s.vm.Labels = map[string]string{"app": "web", "varvebackup.io/x": "y"}
	s.vm.Annotations = map[string]string{"note": "mine", lastApplied: "{}"}
	s.vm.Spec.Template.ObjectMeta.Annotations = map[string]string{"guest": "yes", "varvebackup.io/force-stop": "true"}
	s.vm.Status.PrintableStatus = "Stopped"
	in.Proxy = exportproxy.Address{Host: "exports.example.org", Authorities: "the proxy's"}
	before := s.vm.DeepCopy()

	for link, want := range map[podspec.Link]struct{ base, authorities string }{
		podspec.InternalLink: {"https://virt-export-web.ns.svc", "authorities"},
		podspec.ExternalLink: {"https://exports.example.org/api/export.kubevirt.io/v1beta1/namespaces/ns/virtualmachineexports/web", "the proxy's"},
	} {
		authorities, machine, disks := manifestItems(t, in, link)
		if authorities.Kind != "ConfigMap" || authorities.Name != "export-ca-cm-web" || !maps.Equal(authorities.Data, map[string]string{"ca.pem": want.authorities}) {
			t.Errorf("%s: %+v", link, authorities)
		}
		if machine.Kind != "VirtualMachine" || machine.APIVersion != "kubevirt.io/v1" || machine.Name != "vm" || machine.Namespace != "" || machine.UID != "" || machine.ResourceVersion != "" ||
			len(machine.Finalizers) > 0 || machine.Status.PrintableStatus != "" || !maps.Equal(machine.Labels, map[string]string{"app": "web"}) ||
			!maps.Equal(machine.Annotations, map[string]string{"note": "mine"}) || !maps.Equal(machine.Spec.Template.ObjectMeta.Annotations, map[string]string{"guest": "yes"}) {
			t.Errorf("%s: %+v", link, machine)
		}
		if len(disks) != 1 {
			t.Fatalf("%s: %d disks", link, len(disks))
		}
		// The machine finds its disk by the claim that the DataVolume makes.
		disk := disks[0]
		if claim := machine.Spec.Template.Spec.Volumes[0].PersistentVolumeClaim.ClaimName; disk.Name != claim || disk.Kind != "DataVolume" || disk.APIVersion != cdiv1.SchemeGroupVersion.String() {
			t.Errorf("%s: the machine has claim %s, the disk is %+v", link, claim, disk)
		}
		if diff := cmp.Diff(&cdiv1.DataVolumeSourceHTTP{
			URL: want.base + "/volumes/disk/disk.img.gz", CertConfigMap: authorities.Name, SecretExtraHeaders: []string{"header-secret-web"},
		}, disk.Spec.Source.HTTP); diff != "" {
			t.Errorf("%s: %s", link, diff)
		}
		if size := disk.Spec.Storage.Resources.Requests[corev1.ResourceStorage]; size.String() != "5Gi" || *disk.Spec.Storage.VolumeMode != corev1.PersistentVolumeBlock || disk.Spec.Storage.StorageClassName != nil {
			t.Errorf("%s: %+v", link, disk.Spec.Storage)
		}
	}
	if diff := cmp.Diff(before, s.vm); diff != "" {
		t.Errorf("the machine in the cache was changed: %s", diff)
	}
}

func TestManifests_withoutAProxyHaveNoExternalAddress(t *testing.T) {
	t.Parallel()
	if text := manifestsSecret(machineInput()).Data[podspec.ManifestsKey(podspec.ExternalLink)]; text == nil || len(text) > 0 {
		t.Errorf("%q", text) // the key is mounted, so it must be there
	}
	for name, in := range map[string]*input{"claim": claimInput(), "backup": backupInput()} {
		if s := manifestsSecret(in); s != nil {
			t.Errorf("manifests of a %s: %+v", name, s)
		}
		if m := decide(in).Status.Links.Internal.Manifests; len(m) > 0 {
			t.Errorf("links to manifests of a %s: %+v", name, m)
		}
	}
}

func TestLinks_nameTheManifestsOfAMachine(t *testing.T) {
	t.Parallel()
	in := machineInput()
	in.Proxy.Host = "exports.example.org"
	links := decide(in).Status.Links
	const outside = "https://exports.example.org/api/export.kubevirt.io/v1beta1/namespaces/ns/virtualmachineexports/web"
	for base, link := range map[string]*exportv1.VirtualMachineExportLink{"https://virt-export-web.ns.svc/internal": links.Internal, outside + "/external": links.External} {
		want := []exportv1.VirtualMachineExportManifest{{Type: "all", URL: base + "/manifests/all"}, {Type: "auth-header-secret", URL: base + "/manifests/secret"}}
		if diff := cmp.Diff(want, link.Manifests); diff != "" {
			t.Error(diff)
		}
	}
}
