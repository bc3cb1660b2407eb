package harvesterbackup

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	exportv1 "github.com/varvebackup/varve/api/export/v1beta1"
	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
)

// Beside KubeVirt, nobody writes on a claim which runs could write to it, and KubeVirt's export does not keep its
// machine from starting: it ends when an instance is there, and begins anew when the instance is gone. What changes
// with each run is the instance itself, and, when it is gone, since when the machine's condition Ready is what it is.

// latestRun returns what tells the latest run of a stopped machine from every other one, or "" if KubeVirt has not
// written its status yet. instance has ended, or is nil.
func latestRun(vm *unstructured.Unstructured, instance *kubevirtv1.VirtualMachineInstance) string {
	if instance != nil {
		return string(instance.UID)
	}
	conditions, _, _ := unstructured.NestedSlice(vm.Object, "status", "conditions")
	for _, c := range conditions {
		fields, _ := c.(map[string]any)
		if fields["type"] == "Ready" {
			since, _ := fields["lastTransitionTime"].(string)
			return since
		}
	}
	return ""
}

// hasInstance says whether a machine's status has an instance. KubeVirt writes that together with the conditions: as
// long as it is so without an instance, they are of before its end.
func hasInstance(vm *unstructured.Unstructured) bool {
	created, _, _ := unstructured.NestedBool(vm.Object, "status", "created")
	return created
}

// hasRunSince says whether the machine has run again since its latest run was noted.
func hasRunSince(noted *harvesterv1.StoppedMachine, latest string) bool {
	return slices.ContainsFunc(noted.Claims, func(c harvesterv1.StoppedClaim) bool { return c.Run != latest })
}

// isExportPod says whether a pod serves a VirtualMachineExport. KubeVirt mounts the claims of such pods read-only,
// which their volumes do not say.
func isExportPod(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOf(pod)
	return owner != nil && owner.Kind == "VirtualMachineExport" &&
		owner.APIVersion == exportv1.GroupVersion.String()
}
