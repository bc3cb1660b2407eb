package migration

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/controller/machine/virtualmachineinstance"
	"github.com/varvebackup/varve/internal/layout"
)

// AppToken is the value of the label kubevirt.io on the pods that bring tokens to nodes: that of attachment pods,
// because nothing listens in them either, and they call nobody.
const AppToken = "varve-attachment"

// nobody is the user that runs the container, which reads and writes nothing.
const nobody = 65534

// tokenPod returns the pod that brings the migration's token to the node that the instance leaves. It has no
// privileges: all it does is to have the Secret there.
func tokenPod(m *kubevirtv1.VirtualMachineInstanceMigration, i *kubevirtv1.VirtualMachineInstance, images virtualmachineinstance.Images) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: i.Namespace,
			Name:      layout.MigrationSourcePod(i.Name, i.UID, m.UID),
			Labels: map[string]string{
				layout.LabelApp: AppToken, layout.LabelCreatedBy: string(i.UID), layout.LabelVM: i.Name, layout.LabelMigrationJob: string(m.UID),
			},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(i, kubevirtv1.GroupVersion.WithKind("VirtualMachineInstance"))},
		},
		Spec: corev1.PodSpec{
			RestartPolicy:                 corev1.RestartPolicyAlways,
			TerminationGracePeriodSeconds: ptr.To[int64](5),
			AutomountServiceAccountToken:  ptr.To(false),
			EnableServiceLinks:            ptr.To(false),
			Affinity:                      virtualmachineinstance.NodeAffinity(corev1.NodeSelectorOpIn, i.Status.NodeName),
			Tolerations:                   []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To[int64](nobody), RunAsGroup: ptr.To[int64](nobody),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name:            "hold",
				Image:           images.Varve,
				ImagePullPolicy: images.PullPolicy,
				Command:         []string{"/usr/bin/varve", "internal", "hold"},
				Resources: corev1.ResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("5m"), corev1.ResourceMemory: resource.MustParse("24Mi")},
				},
				SecurityContext: &corev1.SecurityContext{
					Privileged: ptr.To(false), AllowPrivilegeEscalation: ptr.To(false), ReadOnlyRootFilesystem: ptr.To(true),
					Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
		},
	}
	virtualmachineinstance.AddMigrationToken(&pod.Spec, m.UID)
	return pod
}

// podRuns reports whether the first container of the pod runs.
func podRuns(pod *corev1.Pod) bool {
	return pod != nil && pod.DeletionTimestamp == nil && slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
		return s.Name == pod.Spec.Containers[0].Name && s.State.Running != nil
	})
}

func podEnded(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
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
			return fmt.Sprintf("Container %s of pod %s waits on node %s: %s.", s.Name, pod.Name, pod.Spec.NodeName, cmp.Or(w.Message, w.Reason))
		}
	}
	return fmt.Sprintf("Pod %s starts on node %s.", pod.Name, pod.Spec.NodeName)
}
