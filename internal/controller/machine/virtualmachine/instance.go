package virtualmachine

import (
	"maps"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/layout"
)

// instanceFor returns the instance that the machine's template describes. tracked determines for the instance's whole
// life whether its disks are tracked. The instance is created with its finalizer, so that its end is never missed.
func instanceFor(vm *kubevirtv1.VirtualMachine, tracked bool) *kubevirtv1.VirtualMachineInstance {
	template := vm.Spec.Template.DeepCopy()
	instance := &kubevirtv1.VirtualMachineInstance{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:       vm.Namespace,
			Name:            vm.Name,
			Labels:          maps.Clone(template.ObjectMeta.Labels),
			Annotations:     maps.Clone(template.ObjectMeta.Annotations),
			Finalizers:      []string{layout.FinalizerInstance},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(vm, kubevirtv1.GroupVersion.WithKind("VirtualMachine"))},
		},
		Spec: template.Spec,
	}
	if instance.Labels == nil {
		instance.Labels = map[string]string{}
	}
	instance.Labels[layout.LabelVM] = vm.Name
	delete(instance.Labels, layout.LabelNodeName)
	dropReserved(instance.Labels)
	if instance.Annotations == nil {
		instance.Annotations = map[string]string{}
	}
	// Users write templates, but admission sees Varve as the one who writes the instance.
	dropReserved(instance.Annotations)
	if tracked {
		instance.Annotations[layout.AnnotationTracking] = "true"
	}
	return instance
}

// dropReserved removes the keys that only Varve may set on an instance.
func dropReserved(metadata map[string]string) {
	maps.DeleteFunc(metadata, func(key, _ string) bool { return strings.HasPrefix(key, layout.Prefix) })
}
