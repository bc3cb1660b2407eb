package instancepod

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

func TestRunsAsRoot(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		pod, container *bool
		want           bool
	}{
		"nobody says anything":  {want: true},
		"the pod":               {pod: ptr.To(true)},
		"the container":         {container: ptr.To(true)},
		"the container differs": {pod: ptr.To(true), container: ptr.To(false), want: true},
		"the pod differs":       {pod: ptr.To(false), container: ptr.To(true)},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "compute"}}}}
		if test.pod != nil {
			pod.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsNonRoot: test.pod}
		}
		if test.container != nil {
			pod.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{RunAsNonRoot: test.container}
		}
		if got := RunsAsRoot(pod); got != test.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
