// Package v1alpha1 holds the backup.kubevirt.io/v1alpha1 types: VirtualMachineBackup and
// VirtualMachineBackupTracker, as VEP 25 names them, with additions that are all in status.
//
// +kubebuilder:object:generate=true
// +groupName=backup.kubevirt.io
package v1alpha1
