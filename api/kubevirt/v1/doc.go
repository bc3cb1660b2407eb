// Package v1 holds the kubevirt.io/v1 types that Varve serves: KubeVirt, VirtualMachine, VirtualMachineInstance
// and VirtualMachineInstanceMigration.
//
// It is a subset of the released KubeVirt API (v1.8.0). Every field that is here has the name, the
// type and the meaning that it has there, so that upstream clients decode it; a field that Varve
// does not support is absent, so that strict field validation names it to the user.
//
// +kubebuilder:object:generate=true
// +groupName=kubevirt.io
package v1
