//go:build controlplane

package admission

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	exportv1 "github.com/varvebackup/varve/api/export/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/test/controlplane"
	"github.com/varvebackup/varve/test/gen"
)

var cluster *controlplane.Cluster

func TestMain(m *testing.M) { controlplane.Main(m, &cluster) }

func newBackup(ns string) *backupv1.VirtualMachineBackup {
	return gen.Backup(gen.Meta(ns, "backup"), gen.SetTracker("tracker"))
}

func newTracker(ns string) *backupv1.VirtualMachineBackupTracker {
	return gen.Tracker(gen.Meta(ns, "tracker"), "vm")
}

func newExport(ns string) *exportv1.VirtualMachineExport {
	return gen.Export(gen.Meta(ns, "export"), gen.Source("vm"))
}

func newSpec() kubevirtv1.VirtualMachineInstanceSpec {
	spec := gen.Guest(gen.Disk("root", "root"))
	spec.Domain.Firmware = &kubevirtv1.Firmware{KernelBoot: &kubevirtv1.KernelBoot{
		KernelArgs: "console=ttyS0", Container: &kubevirtv1.KernelBootContainer{Image: "guest", KernelPath: "/kernel"},
	}}
	spec.Domain.Devices.Interfaces = []kubevirtv1.Interface{{Name: "default", Masquerade: &kubevirtv1.InterfaceMasquerade{}}}
	spec.Networks = []kubevirtv1.Network{{Name: "default", Pod: &kubevirtv1.PodNetwork{}}}
	return spec
}

func claimSource(name string) *kubevirtv1.PersistentVolumeClaimVolumeSource {
	return &kubevirtv1.PersistentVolumeClaimVolumeSource{PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}
}

func newInstance(ns string) *kubevirtv1.VirtualMachineInstance {
	return gen.VirtualMachineInstance(gen.Meta(ns, "vm"), newSpec())
}

func newMachine(ns string) *kubevirtv1.VirtualMachine {
	return &kubevirtv1.VirtualMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "vm"},
		Spec:       kubevirtv1.VirtualMachineSpec{Template: &kubevirtv1.VirtualMachineInstanceTemplateSpec{Spec: newSpec()}},
	}
}

func utility(name, claim string) kubevirtv1.UtilityVolume {
	return kubevirtv1.UtilityVolume{
		Name: name, Type: ptr.To(kubevirtv1.UtilityVolumeBackup),
		PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
	}
}

// refused fails the test unless err is a refusal by the API server with one of these texts.
func refused(t *testing.T, err error, texts ...string) {
	t.Helper()
	switch {
	case err == nil:
		t.Fatalf("admitted; want a refusal that says one of %q", texts)
	case !slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(err.Error(), text) }):
		t.Fatalf("refused with %v; want one of %q", err, texts)
	}
}

func admitted(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("refused: %v", err)
	}
}
