// Package v1beta1 holds the export.kubevirt.io/v1beta1 types: VirtualMachineExport, a subset of the released KubeVirt
// API. Every field that is here has the name, the type and the meaning that it has there.
//
// +kubebuilder:object:generate=true
// +groupName=export.kubevirt.io
package v1beta1
