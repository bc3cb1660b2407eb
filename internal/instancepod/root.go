package instancepod

import corev1 "k8s.io/api/core/v1"

// RunsAsRoot reports whether a container of the pod may run as root: whether neither it nor the pod says otherwise.
func RunsAsRoot(pod *corev1.Pod) bool {
	var nonRoot *bool
	if c := pod.Spec.SecurityContext; c != nil {
		nonRoot = c.RunAsNonRoot
	}
	for i := range pod.Spec.Containers {
		effective := nonRoot
		if c := pod.Spec.Containers[i].SecurityContext; c != nil && c.RunAsNonRoot != nil {
			effective = c.RunAsNonRoot
		}
		if effective == nil || !*effective {
			return true
		}
	}
	return false
}
