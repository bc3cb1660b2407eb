package resource

import (
	corev1 "k8s.io/api/core/v1"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
)

// VirtualMachineReference returns a reference to a machine.
func VirtualMachineReference(name string) *corev1.TypedLocalObjectReference {
	group := kubevirtv1.GroupVersion.Group
	return &corev1.TypedLocalObjectReference{APIGroup: &group, Kind: "VirtualMachine", Name: name}
}
