package migration

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/controller/machine/holdpod"
	"github.com/varvebackup/varve/internal/controller/machine/virtualmachineinstance"
	"github.com/varvebackup/varve/internal/layout"
)

// tokenPod returns the pod that brings the migration's token to the node that the instance leaves.
func tokenPod(
	m *kubevirtv1.VirtualMachineInstanceMigration, i *kubevirtv1.VirtualMachineInstance,
	images virtualmachineinstance.Images,
) *corev1.Pod {
	image := holdpod.Image{Name: images.Varve, PullPolicy: images.PullPolicy}
	pod := holdpod.New(i, layout.MigrationSourcePod(i.Name, i.UID, m.UID), layout.LabelMigrationJob, string(m.UID), image)
	pod.Spec.Affinity = virtualmachineinstance.NodeAffinity(corev1.NodeSelectorOpIn, i.Status.NodeName)
	virtualmachineinstance.AddMigrationToken(&pod.Spec, m.UID)
	return pod
}

// podRuns reports whether the first container of the pod runs.
func podRuns(pod *corev1.Pod) bool {
	runs := func(s corev1.ContainerStatus) bool {
		return s.Name == pod.Spec.Containers[0].Name && s.State.Running != nil
	}
	return pod != nil && pod.DeletionTimestamp == nil && slices.ContainsFunc(pod.Status.ContainerStatuses, runs)
}

// whyPodsWait says what keeps the pods from running.
func whyPodsWait(in input) string {
	for _, pod := range []*corev1.Pod{in.Target, in.Token} {
		switch {
		case pod == nil:
			return "The target pod is being created."
		case podRuns(pod):
		default:
			return whyPodWaits(pod)
		}
	}
	return ""
}

func whyPodWaits(pod *corev1.Pod) string {
	if pod.Spec.NodeName == "" {
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
				return fmt.Sprintf("No node can take pod %s: %s", pod.Name, c.Message)
			}
		}
		return fmt.Sprintf("Pod %s waits for a node.", pod.Name)
	}
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if w := s.State.Waiting; w != nil {
			return fmt.Sprintf("Container %s of pod %s waits on node %s: %s.",
				s.Name, pod.Name, pod.Spec.NodeName, cmp.Or(w.Message, w.Reason))
		}
	}
	return fmt.Sprintf("Pod %s starts on node %s.", pod.Name, pod.Spec.NodeName)
}
