package virtualmachineinstance

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// launcherRuns reports whether the launcher runs.
func launcherRuns(pod *corev1.Pod) bool {
	return pod.Spec.NodeName != "" && slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
		return s.Name == computeContainer && s.State.Running != nil
	})
}

// whyUnscheduled says why the pod has no node. A claim that only its provisioner can bind is named before the
// scheduler's message, which repeats it for every node.
func whyUnscheduled(in input) *obstacle {
	if in.Pod.Spec.NodeName != "" {
		return nil
	}
	var unbound []string
	for _, c := range in.Unbound {
		if c.Immediate {
			return &obstacle{ReasonWaitingForVolume, fmt.Sprintf("PersistentVolumeClaim %s is not bound: check its events.", c.Name)}
		}
		unbound = append(unbound, c.Name)
	}
	for _, c := range in.Pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return &obstacle{ReasonUnschedulable, c.Message}
		}
	}
	if len(unbound) > 0 {
		return &obstacle{ReasonWaitingForVolume, fmt.Sprintf("Waiting for a node and a volume for PersistentVolumeClaim %s.", strings.Join(unbound, ", "))}
	}
	return nil
}

// imageReasons are the kubelet's words for an image that is not available.
var imageReasons = []string{
	"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError", "RegistryUnavailable", "SignatureValidationFailed",
}

// whyPodIsStuck says why a pod that has a node does not run. It returns nil if the pod is on its way.
func whyPodIsStuck(pod *corev1.Pod) *obstacle {
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		w := s.State.Waiting
		if w == nil || w.Reason == "" || w.Reason == "ContainerCreating" || w.Reason == "PodInitializing" {
			continue
		}
		if slices.Contains(imageReasons, w.Reason) {
			return &obstacle{ReasonImagePull, fmt.Sprintf("Image %s: %s: %s", s.Image, w.Reason, w.Message)}
		}
		return &obstacle{w.Reason, fmt.Sprintf("Container %s: %s", s.Name, w.Message)}
	}
	return nil
}
