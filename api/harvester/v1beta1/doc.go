// Package v1beta1 holds the harvesterhci.io/v1beta1 types VirtualMachineBackup and VirtualMachineRestore: a whole
// virtual machine that is backed up, and one that comes back. Every field that Harvester 1.8 has too has its name, its
// type and its meaning there. What Harvester has no field for travels in annotations, and in fields of status that
// Harvester does not have.
//
// A VirtualMachineBackup of backup.kubevirt.io is one job on the hypervisor, and no machine comes back from it alone.
//
// +kubebuilder:object:generate=true
// +groupName=harvesterhci.io
package v1beta1
