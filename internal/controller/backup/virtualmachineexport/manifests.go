package virtualmachineexport

import (
	"encoding/json"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	exportv1 "github.com/varvebackup/varve/api/export/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/export/podspec"
	"github.com/varvebackup/varve/internal/layout"
)

// authoritiesKey is the key of the authorities in their ConfigMap, as upstream has it. CDI reads every key.
const authoritiesKey = "ca.pem"

// lastApplied is kubectl's copy of the object as it was applied.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// dataVolume is what a manifest has of CDI's DataVolume (cdi.kubevirt.io/v1beta1).
type dataVolume struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        manifestMeta   `json:"metadata"`
	Spec            dataVolumeSpec `json:"spec"`
}

type dataVolumeSpec struct {
	Source  dataVolumeSource  `json:"source"`
	Storage dataVolumeStorage `json:"storage"`
}

type dataVolumeSource struct {
	HTTP httpSource `json:"http"`
}

// httpSource tells CDI where it fetches a disk, whom it trusts there and which headers it sends.
type httpSource struct {
	URL                string   `json:"url"`
	CertConfigMap      string   `json:"certConfigMap"`
	SecretExtraHeaders []string `json:"secretExtraHeaders"`
}

// dataVolumeStorage names no storage class: it is the default one of the cluster where the manifest is applied.
type dataVolumeStorage struct {
	AccessModes []corev1.PersistentVolumeAccessMode `json:"accessModes,omitempty"`
	VolumeMode  *corev1.PersistentVolumeMode        `json:"volumeMode,omitempty"`
	Resources   corev1.VolumeResourceRequirements   `json:"resources"`
}

// machineManifest is a VirtualMachine without its status.
type machineManifest struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        manifestMeta                  `json:"metadata"`
	Spec            kubevirtv1.VirtualMachineSpec `json:"spec"`
}

type configMapManifest struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        manifestMeta      `json:"metadata"`
	Data            map[string]string `json:"data"`
}

// manifestMeta has no namespace: a manifest goes where its user applies it, with everything that it names.
type manifestMeta struct {
	Name        string            `json:"name"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// manifestsSecret returns what the export pod serves as manifests, or nil if the source is no machine. What is in it can
// be read by whoever reads the machine, but for the sake of passwords for its guest it is no ConfigMap.
func manifestsSecret(in *input) *corev1.Secret {
	source, ok := in.Source.(*volumeSource)
	if !ok || source.vm == nil {
		return nil
	}
	data := map[string][]byte{
		podspec.ManifestsKey(podspec.InternalLink): manifestsOf(in.Export, source, internalBase(in.Export), in.Authorities),
		podspec.ManifestsKey(podspec.ExternalLink): {},
	}
	if in.Proxy.Host != "" {
		data[podspec.ManifestsKey(podspec.ExternalLink)] = manifestsOf(in.Export, source, externalBase(in), in.Proxy.Authorities)
	}
	return &corev1.Secret{ObjectMeta: childMeta(in.Export, podspec.ManifestsSecret(in.Export.Name)), Type: corev1.SecretTypeOpaque, Data: data}
}

// manifestsDiffer reports whether a Secret has to be written.
func manifestsDiffer(have, wanted *corev1.Secret) bool {
	return wanted != nil && (have == nil || !equality.Semantic.DeepEqual(have.Data, wanted.Data))
}

// manifestsOf returns a machine with what it needs to come up elsewhere: its disks, fetched from below base, and the
// authorities to trust there. The Secret with the token is not in it.
func manifestsOf(export *exportv1.VirtualMachineExport, source *volumeSource, base, authorities string) []byte {
	items := []any{
		configMapManifest{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, Metadata: manifestMeta{Name: podspec.CAConfigMap(export.Name)},
			Data: map[string]string{authoritiesKey: authorities},
		},
		machineOf(source.vm),
	}
	for _, c := range source.claims {
		if c.object == nil {
			continue // nothing is served then
		}
		items = append(items, dataVolume{
			TypeMeta: metav1.TypeMeta{APIVersion: "cdi.kubevirt.io/v1beta1", Kind: "DataVolume"}, Metadata: manifestMeta{Name: c.name},
			Spec: dataVolumeSpec{
				Source: dataVolumeSource{HTTP: httpSource{
					URL: base + podspec.GzipPath(c.name), CertConfigMap: podspec.CAConfigMap(export.Name), SecretExtraHeaders: []string{podspec.HeaderSecret(export.Name)},
				}},
				Storage: dataVolumeStorage{
					AccessModes: c.object.Spec.AccessModes, VolumeMode: c.object.Spec.VolumeMode,
					Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: sizeOf(c.object)}},
				},
			},
		})
	}
	text, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": items})
	if err != nil {
		panic(err) // types of the API
	}
	return text
}

// machineOf returns the machine as its user wrote it.
func machineOf(vm *kubevirtv1.VirtualMachine) machineManifest {
	m := machineManifest{
		TypeMeta: metav1.TypeMeta{APIVersion: kubevirtv1.GroupVersion.String(), Kind: "VirtualMachine"},
		Metadata: manifestMeta{Name: vm.Name, Labels: withoutOurs(vm.Labels), Annotations: withoutOurs(vm.Annotations)},
		Spec:     *vm.Spec.DeepCopy(),
	}
	if t := m.Spec.Template; t != nil {
		t.ObjectMeta.Labels, t.ObjectMeta.Annotations = withoutOurs(t.ObjectMeta.Labels), withoutOurs(t.ObjectMeta.Annotations)
	}
	return m
}

// withoutOurs returns labels or annotations without those that mean something in this cluster alone.
func withoutOurs(metadata map[string]string) map[string]string {
	kept := maps.Clone(metadata)
	maps.DeleteFunc(kept, func(key, _ string) bool { return strings.HasPrefix(key, layout.Prefix) || key == lastApplied })
	return kept
}

// sizeOf returns the size that a copy of a claim's disk needs: the disk may fill what the claim got, which may be more
// than it asked for.
func sizeOf(claim *corev1.PersistentVolumeClaim) resource.Quantity {
	size, got := claim.Spec.Resources.Requests[corev1.ResourceStorage], claim.Status.Capacity[corev1.ResourceStorage]
	if got.Cmp(size) > 0 {
		return got
	}
	return size
}
