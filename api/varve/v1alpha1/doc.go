// Package v1alpha1 holds the varvebackup.io/v1alpha1 type BackupPolicy, which gives each virtual machine with certain
// labels a schedule. It is a kind of Varve's own: nobody else has one of the same purpose whose fields it could take.
//
// +kubebuilder:object:generate=true
// +groupName=varvebackup.io
package v1alpha1
