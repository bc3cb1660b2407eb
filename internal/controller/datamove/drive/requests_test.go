package drive

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// A mover without requests is the first one that is evicted; what the settings say stays.
func TestMoverPod_hasRequests(t *testing.T) {
	t.Parallel()
	list := func(memory, cpu string) corev1.ResourceList {
		l := corev1.ResourceList{}
		if memory != "" {
			l[corev1.ResourceMemory] = resource.MustParse(memory)
		}
		if cpu != "" {
			l[corev1.ResourceCPU] = resource.MustParse(cpu)
		}
		return l
	}
	type requirements = corev1.ResourceRequirements
	for name, c := range map[string]struct{ set, want requirements }{
		"nothing":     {want: requirements{Requests: list("256Mi", "100m")}},
		"another one": {requirements{Requests: list("1Gi", "")}, requirements{Requests: list("1Gi", "100m")}},
		"none":        {requirements{Requests: list("0", "0")}, requirements{Requests: list("0", "0")}},
		"a limit, which is a request, too": {
			requirements{Limits: list("128Mi", "")}, requirements{
				Limits:   list("128Mi", ""),
				Requests: list("", "100m"),
			},
		},
	} {
		before := c.set.DeepCopy()
		in := podInput{view: base("Accepted").Object}
		in.settings.Pod.Resources = c.set
		if diff := cmp.Diff(c.want, moverPod(in).Spec.Containers[0].Resources); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if diff := cmp.Diff(*before, c.set); diff != "" {
			t.Errorf("%s: the settings were changed: %s", name, diff)
		}
	}
}
