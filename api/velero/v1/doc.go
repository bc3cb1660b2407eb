// Package v1 holds the velero.io/v1 types that say where backups go, BackupStorageLocation and BackupRepository, and that ask to
// delete one, DeleteBackupRequest, as Velero 1.18 serves them. Every field has the name, the type and the meaning that it has there.
// On a cluster with Velero, Velero's own definitions of these kinds stay in place.
//
// No kind has a status subresource: an update writes labels, spec and status at once.
//
// +kubebuilder:object:generate=true
// +groupName=velero.io
package v1
