// Package v1beta1 holds the snapshot.kubevirt.io/v1beta1 types VirtualMachineSnapshot and
// VirtualMachineSnapshotContent: snapshots that the storage makes of all disks of a virtual machine, of one moment. It is
// a subset of the released KubeVirt API: every field that is here has the name, the type and the meaning that it has
// there, but for status.instanceUID, status.nodeName and status.quiesce, which KubeVirt does not have.
//
// +kubebuilder:object:generate=true
// +groupName=snapshot.kubevirt.io
package v1beta1
