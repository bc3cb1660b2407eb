//go:build controlplane

package admission

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/test/controlplane"
)

var cluster *controlplane.Cluster

func TestMain(m *testing.M) { controlplane.Main(m, &cluster) }

func source() *corev1.TypedLocalObjectReference {
	return &corev1.TypedLocalObjectReference{APIGroup: ptr.To("kubevirt.io"), Kind: "VirtualMachine", Name: "vm"}
}

func newBackup(ns string) *backupv1.VirtualMachineBackup {
	return &backupv1.VirtualMachineBackup{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "backup"},
		Spec:       backupv1.VirtualMachineBackupSpec{BackupTracker: "tracker", PVCName: "target"},
	}
}

func newTracker(ns string) *backupv1.VirtualMachineBackupTracker {
	return &backupv1.VirtualMachineBackupTracker{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "tracker"},
		Spec:       backupv1.VirtualMachineBackupTrackerSpec{Source: *source()},
	}
}

func newSpec() kubevirtv1.VirtualMachineInstanceSpec {
	return kubevirtv1.VirtualMachineInstanceSpec{
		Domain: kubevirtv1.DomainSpec{
			Memory: &kubevirtv1.Memory{Guest: ptr.To(resource.MustParse("64Mi"))},
			Firmware: &kubevirtv1.Firmware{KernelBoot: &kubevirtv1.KernelBoot{
				KernelArgs: "console=ttyS0", Container: &kubevirtv1.KernelBootContainer{Image: "guest", KernelPath: "/kernel"},
			}},
			Devices: kubevirtv1.Devices{
				Disks:      []kubevirtv1.Disk{{Name: "root", Disk: &kubevirtv1.DiskTarget{Bus: "virtio"}}},
				Interfaces: []kubevirtv1.Interface{{Name: "default", Masquerade: &kubevirtv1.InterfaceMasquerade{}}},
			},
		},
		Volumes:  []kubevirtv1.Volume{{Name: "root", PersistentVolumeClaim: claimSource("root")}},
		Networks: []kubevirtv1.Network{{Name: "default", Pod: &kubevirtv1.PodNetwork{}}},
	}
}

func claimSource(name string) *kubevirtv1.PersistentVolumeClaimVolumeSource {
	return &kubevirtv1.PersistentVolumeClaimVolumeSource{PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}
}

func newInstance(ns string) *kubevirtv1.VirtualMachineInstance {
	return &kubevirtv1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "vm"}, Spec: newSpec()}
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
