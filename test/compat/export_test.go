package compat

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	upstream "kubevirt.io/api/export/v1beta1"

	exportv1 "github.com/varvebackup/varve/api/export/v1beta1"
)

func TestExportTypesAreUpstreams(t *testing.T) {
	t.Parallel()
	export := full[exportv1.VirtualMachineExport](t)
	export.ObjectMeta = metav1.ObjectMeta{Namespace: "ns", Name: "name", Labels: map[string]string{"a": "b"}}
	roundTrip(t, export, &upstream.VirtualMachineExport{})
}

// Constants are sent as strings.
func TestExportConstantsAreUpstreams(t *testing.T) {
	t.Parallel()
	pairs := [][2]string{
		{string(exportv1.ExportPending), string(upstream.Pending)},
		{string(exportv1.ExportReady), string(upstream.Ready)},
		{string(exportv1.ExportTerminated), string(upstream.Terminated)},
		{string(exportv1.ExportSkipped), string(upstream.Skipped)},
		{string(exportv1.ConditionReady), string(upstream.ConditionReady)},
		{string(exportv1.ConditionPVC), string(upstream.ConditionPVC)},
		{string(exportv1.FormatRaw), string(upstream.KubeVirtRaw)},
		{string(exportv1.FormatGzip), string(upstream.KubeVirtGz)},
		{string(exportv1.FormatDir), string(upstream.Dir)},
		{string(exportv1.FormatTarGz), string(upstream.ArchiveGz)},
		{string(exportv1.EndpointMap), string(upstream.Map)},
		{string(exportv1.EndpointData), string(upstream.Data)},
		{string(exportv1.ManifestAll), string(upstream.AllManifests)},
		{string(exportv1.ManifestAuthHeader), string(upstream.AuthHeader)},
		{exportv1.GroupVersion.String(), upstream.SchemeGroupVersion.String()},
	}
	for _, p := range pairs {
		if p[0] != p[1] {
			t.Errorf("%q is %q upstream", p[0], p[1])
		}
	}
	if exportv1.DefaultTTL != upstream.DefaultDurationTTL {
		t.Errorf("default TTL %s, upstream's is %s", exportv1.DefaultTTL, upstream.DefaultDurationTTL)
	}
}
