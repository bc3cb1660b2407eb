//go:build controlplane

package controller

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/controller/utilityvolume"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/controlplane"
)

// want sets the instance's utility volumes: one on each claim, named like it.
func (w *world) want(vmi *kubevirtv1.VirtualMachineInstance, claims ...string) {
	w.Helper()
	controlplane.Update(w.T, w.node, vmi, false, func(i *kubevirtv1.VirtualMachineInstance) {
		i.Spec.UtilityVolumes = nil
		for _, c := range claims {
			i.Spec.UtilityVolumes = append(i.Spec.UtilityVolumes, kubevirtv1.UtilityVolume{
				Name: c, PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: c},
			})
		}
	})
}

// volume waits for a utility volume to be in a phase with a reason.
func (w *world) volume(name string, phase kubevirtv1.VolumePhase, reason string) *kubevirtv1.VirtualMachineInstance {
	w.Helper()
	return w.vmi(func(i *kubevirtv1.VirtualMachineInstance) error {
		for _, s := range i.Status.VolumeStatus {
			if s.Name == name && s.Phase == phase && s.Reason == reason {
				return nil
			}
		}
		return fmt.Errorf("%s is not %s %s: %+v", name, phase, reason, i.Status.VolumeStatus)
	})
}

func (w *world) noVolume(name string) {
	w.Helper()
	w.vmi(func(i *kubevirtv1.VirtualMachineInstance) error {
		for _, s := range i.Status.VolumeStatus {
			if s.Name == name {
				return fmt.Errorf("%+v", s)
			}
		}
		return nil
	})
}

// setVolume plays the handler.
func (w *world) setVolume(vmi *kubevirtv1.VirtualMachineInstance, name string, phase kubevirtv1.VolumePhase) {
	w.Helper()
	controlplane.Update(w.T, w.node, vmi, true, func(i *kubevirtv1.VirtualMachineInstance) {
		for n := range i.Status.VolumeStatus {
			if i.Status.VolumeStatus[n].Name == name {
				i.Status.VolumeStatus[n].Phase = phase
			}
		}
	})
}

func (w *world) attachment(vmi *kubevirtv1.VirtualMachineInstance, name string) *corev1.Pod {
	w.Helper()
	return wait(w, &corev1.Pod{ObjectMeta: w.meta(layout.AttachmentPod(vmi.Name, vmi.UID, name))}, exists)
}

func utilityVolume(w *world) {
	w.claim("root", "1Gi", corev1.PersistentVolumeFilesystem)
	w.claim("target", "1Gi", corev1.PersistentVolumeFilesystem)
	w.machine(kubevirtv1.RunStrategyAlways, nil)
	vmi, _ := w.boot()
	w.want(vmi, "target")
	w.volume("target", kubevirtv1.VolumePending, utilityvolume.ReasonPodPending)
	pod := w.attachment(vmi, "target")
	if pod.Spec.NodeSelector[corev1.LabelHostname] != "host-1" {
		w.Errorf("node selector %v", pod.Spec.NodeSelector)
	}
	w.run(pod)
	vmi = w.volume("target", kubevirtv1.VolumeAttachedToNode, "")
	if s := vmi.Status.VolumeStatus[0]; s.Target != "" || s.HotplugVolume.AttachPodUID != pod.UID || s.PersistentVolumeClaimInfo.ClaimName != "target" {
		w.Errorf("%+v", s)
	}
	w.setVolume(vmi, "target", kubevirtv1.VolumeMountedToPod)
	w.restart()

	w.want(vmi)
	w.volume("target", kubevirtv1.VolumeMountedToPod, "")
	w.setVolume(vmi, "target", kubevirtv1.VolumeUnMountedFromPod)
	w.sweep(pod)
	w.noVolume("target")
}

func utilityVolumeWaits(w *world) {
	w.claim("root", "1Gi", corev1.PersistentVolumeFilesystem)
	w.claim("device", "1Gi", corev1.PersistentVolumeBlock)
	w.machine(kubevirtv1.RunStrategyAlways, nil)
	vmi, _ := w.boot()
	w.want(vmi, "later", "device")
	w.volume("later", kubevirtv1.VolumePending, utilityvolume.ReasonClaimNotFound)
	w.volume("device", kubevirtv1.VolumePending, utilityvolume.ReasonClaimIsBlock)
	w.claim("later", "1Gi", corev1.PersistentVolumeFilesystem)
	w.run(w.attachment(vmi, "later"))
	w.volume("later", kubevirtv1.VolumeAttachedToNode, "")
	w.want(vmi, "later")
	w.noVolume("device")
}

// utilityVolumeOfDeadGuest: a backup's volume outlives its guest until the partial files are gone, and nothing else does.
func utilityVolumeOfDeadGuest(w *world) {
	w.claim("root", "1Gi", corev1.PersistentVolumeFilesystem)
	w.claim("target", "1Gi", corev1.PersistentVolumeFilesystem)
	w.machine(kubevirtv1.RunStrategyManual, nil)
	w.vm(printable(kubevirtv1.VirtualMachineStopped))
	w.ask(kubevirtv1.StateChangeRequest{Action: kubevirtv1.StartRequest})
	vmi, launcher := w.boot()

	// The backup exists and is in Pruning; its own controller is played as well, so that it stays there.
	b := &backupv1.VirtualMachineBackup{ObjectMeta: w.meta("b")}
	b.Spec = backupv1.VirtualMachineBackupSpec{
		Mode: backupv1.PushMode, PVCName: "target",
		Source: &corev1.TypedLocalObjectReference{APIGroup: &kubevirtv1.GroupVersion.Group, Kind: "VirtualMachine", Name: "vm"},
	}
	w.create(w.user, b)
	name := layout.BackupUtilityVolume(b.UID)
	controlplane.Update(w.T, w.node, b, true, func(b *backupv1.VirtualMachineBackup) {
		b.Status.Phase, b.Status.SourceName, b.Status.InstanceUID = backupv1.BackupPruning, "vm", vmi.UID
		b.Status.PhaseDeadline = nil
	})
	controlplane.Update(w.T, w.node, vmi, false, func(i *kubevirtv1.VirtualMachineInstance) {
		i.Spec.UtilityVolumes = []kubevirtv1.UtilityVolume{{Name: name, PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: "target"}}}
	})
	pod := w.attachment(vmi, name)
	w.run(pod)
	w.volume(name, kubevirtv1.VolumeAttachedToNode, "")
	w.setVolume(vmi, name, kubevirtv1.VolumeMountedToPod)

	w.end(launcher, corev1.PodFailed, `{"end":"CRASHED","message":"QEMU died"}`)
	w.sweep(launcher)
	w.volume(name, kubevirtv1.VolumeMountedToPod, utilityvolume.ReasonHeldByBackup)
	w.restart()
	if err := w.kubelet.Get(w.Context(), client.ObjectKeyFromObject(pod), pod); err != nil || pod.DeletionTimestamp != nil {
		w.Fatalf("the attachment pod did not wait for the backup: %v, %v", err, pod.DeletionTimestamp)
	}
	// The instance waits for its attachment pod, and the next one for the instance.
	if vmi := w.vmi(exists); vmi.DeletionTimestamp == nil || vmi.Status.Phase != kubevirtv1.PhaseFailed {
		w.Errorf("%+v", vmi.ObjectMeta)
	}
	controlplane.Update(w.T, w.node, b, true, func(b *backupv1.VirtualMachineBackup) { b.Status.Phase = backupv1.BackupPruned })
	w.sweep(pod)
	w.gone(&kubevirtv1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "vm"}})
}
