package utilityvolume

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/instancepod"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/tracking"
)

func compareStrings(a, b string) int { return cmp.Compare(a, b) }

// advanceWanted takes a volume of the spec one step further towards AttachedToNode, or back if its pod is lost.
func (d *decision) advanceWanted(in input, v kubevirtv1.UtilityVolume, status kubevirtv1.VolumeStatus) {
	defer func() { d.Status = append(d.Status, status) }()
	pending := func(reason, format string, args ...any) {
		status.Phase, status.Reason, status.Message = kubevirtv1.VolumePending, reason, fmt.Sprintf(format, args...)
	}
	pod := in.Pods[v.Name]
	if mayBeMounted(status) {
		if lostHolder(pod, status) {
			// What is mounted now may be in use on another node in a moment. The handler ends the backup that
			// writes to it, and unmounts it.
			status.Phase, status.Reason = kubevirtv1.VolumeDetaching, ReasonPodLost
			status.Message = fmt.Sprintf("The attachment pod %s ended; the volume is being unmounted from the launcher.", status.HotplugVolume.AttachPodName)
		}
		// A container that is restarted still holds the volume: the kubelet unmounts it when the pod ends.
		return
	}
	if podHoldsVolume(pod) {
		status.Phase = kubevirtv1.VolumeAttachedToNode
		status.Reason, status.Message = "", ""
		status.HotplugVolume = &kubevirtv1.HotplugVolumeStatus{AttachPodName: pod.Name, AttachPodUID: pod.UID}
		return
	}
	if in.Instance.DeletionTimestamp != nil {
		return // Nothing new is attached to a guest that is being stopped, and what is mounted stays as it is.
	}
	claim := in.Claims[v.ClaimName]
	switch {
	case claim == nil:
		pending(ReasonClaimNotFound, "PersistentVolumeClaim %s does not exist; create it.", v.ClaimName)
		return
	case tracking.IsBlock(claim.Spec.VolumeMode):
		pending(ReasonClaimIsBlock, "PersistentVolumeClaim %s has volumeMode Block; use one with volumeMode Filesystem.", v.ClaimName)
		return
	}
	status.PersistentVolumeClaimInfo = claimInfo(claim)
	switch {
	case pod != nil && podIsLost(pod):
		pending(ReasonPodLost, "The attachment pod %s ended; another one is being created.", pod.Name)
		d.deletePod(pod)
	case pod != nil:
		status.HotplugVolume.AttachPodName = pod.Name
		reason, message := whyPodWaits(pod, claim)
		pending(reason, "%s", message)
	case in.Instance.Status.Phase != kubevirtv1.PhaseRunning || in.Instance.Status.NodeName == "":
		pending(ReasonGuestNotRunning, "The volume will be attached when the guest runs.")
	default:
		status.HotplugVolume = &kubevirtv1.HotplugVolumeStatus{AttachPodName: layout.AttachmentPod(in.Instance.Name, in.Instance.UID, v.Name)}
		pending(ReasonPodPending, "The attachment pod is being created.")
		d.Create = append(d.Create, v)
	}
}

// mayBeMounted reports whether the handler may have mounted the volume, or may still do so.
func mayBeMounted(status kubevirtv1.VolumeStatus) bool {
	return status.Phase == kubevirtv1.VolumeAttachedToNode || status.Phase == kubevirtv1.VolumeMountedToPod
}

// lostHolder reports whether the pod that attached the volume no longer holds it.
func lostHolder(pod *corev1.Pod, status kubevirtv1.VolumeStatus) bool {
	return pod == nil || pod.UID != status.HotplugVolume.AttachPodUID || podIsLost(pod)
}

// podHoldsVolume reports whether the pod runs, so that the claim is mounted on its node.
func podHoldsVolume(pod *corev1.Pod) bool {
	return pod != nil && pod.DeletionTimestamp == nil && pod.Status.Phase == corev1.PodRunning &&
		slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.State.Running != nil })
}

// podIsLost reports whether the pod will no longer hold the volume.
func podIsLost(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil || instancepod.HasEnded(pod)
}

// whyPodWaits says why an attachment pod does not run yet.
func whyPodWaits(pod *corev1.Pod, claim *corev1.PersistentVolumeClaim) (reason, message string) {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			if claim.Status.Phase != corev1.ClaimBound {
				return ReasonClaimNotBound, fmt.Sprintf("PersistentVolumeClaim %s is not bound; the scheduler says: %s", claim.Name, c.Message)
			}
			return ReasonPodPending, fmt.Sprintf("The attachment pod %s cannot be scheduled: %s", pod.Name, c.Message)
		}
	}
	for _, s := range pod.Status.ContainerStatuses {
		if w := s.State.Waiting; w != nil && w.Reason != "ContainerCreating" {
			return ReasonPodPending, fmt.Sprintf("The attachment pod %s waits: %s: %s", pod.Name, w.Reason, w.Message)
		}
	}
	if claim.Status.Phase != corev1.ClaimBound {
		return ReasonClaimNotBound, fmt.Sprintf("PersistentVolumeClaim %s is not bound yet: check its events.", claim.Name)
	}
	return ReasonPodPending, fmt.Sprintf("The attachment pod %s is starting; if it does not come up, check its events.", pod.Name)
}

func claimInfo(claim *corev1.PersistentVolumeClaim) *kubevirtv1.PersistentVolumeClaimInfo {
	c := claim.DeepCopy()
	return &kubevirtv1.PersistentVolumeClaimInfo{
		ClaimName: c.Name, AccessModes: c.Spec.AccessModes, VolumeMode: c.Spec.VolumeMode,
		Capacity: c.Status.Capacity, Requests: c.Spec.Resources.Requests,
	}
}
