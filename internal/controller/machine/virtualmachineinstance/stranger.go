package virtualmachineinstance

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/instancepod"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/runepoch"
)

// findStrangers returns the pods that can write to a claim and that Varve did not make.
func findStrangers(claim string, pods []corev1.Pod) []runepoch.Stranger {
	var all []runepoch.Stranger
	for i := range pods {
		if canWrite(&pods[i], claim) && !isOwnPod(&pods[i]) {
			all = append(all, runepoch.Stranger{UID: pods[i].UID, Ended: instancepod.HasEnded(&pods[i])})
		}
	}
	return all
}

// whyAttachedElsewhere says why a guest must not write to a claim that is attached to another instance as a utility volume. It
// returns nil if the claim is not attached.
func whyAttachedElsewhere(u use, pods []corev1.Pod) *obstacle {
	for i := range pods {
		pod := &pods[i]
		if u.writes && canWrite(pod, u.claim) && isOwnPod(pod) && pod.Labels[layout.LabelAttachment] != "" &&
			!instancepod.HasEnded(pod) {
			return &obstacle{ReasonClaimInUse, fmt.Sprintf(
				"PersistentVolumeClaim %s is attached to VirtualMachineInstance %s, for example for a backup; this machine starts when it is detached.",
				u.claim, metav1.GetControllerOf(pod).Name)}
		}
	}
	return nil
}

func canWrite(pod *corev1.Pod, claim string) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim && !v.PersistentVolumeClaim.ReadOnly
	})
}

// isOwnPod reports whether a pod is the launcher pod or an attachment pod of an instance. It judges by the pod's owner
// and by its name, which follows from the owner. Anybody can set the labels.
func isOwnPod(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOf(pod)
	if owner == nil || owner.APIVersion != kubevirtv1.GroupVersion.String() || owner.Kind != "VirtualMachineInstance" {
		return false
	}
	return pod.Name == instancepod.LauncherName(pod, owner.Name, owner.UID) ||
		pod.Name == layout.AttachmentPod(owner.Name, owner.UID, pod.Labels[layout.LabelAttachment])
}
