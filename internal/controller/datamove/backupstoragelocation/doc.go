// Package backupstoragelocation tries the BackupStorageLocations of Varve's own namespace at intervals, and says in their status whether they
// can be used.
//
// Locations of other namespaces are Velero's: it tries them itself and writes their status. What keeps Varve from one of those is shown by
// the BackupRepositories in it.
//
// A location is listed each time. Something is written and deleted there when it is tried for the first time, after a change, after a failure
// and once an hour: a bucket with versions keeps each of these objects for good. A claim and an NFS export are tried by a pod (package storagepod). No pass waits for a storage.
package backupstoragelocation

// +kubebuilder:rbac:groups=velero.io,resources=backupstoragelocations,verbs=get;list;watch
// +kubebuilder:rbac:groups=velero.io,resources=backupstoragelocations,namespace=varve,verbs=patch
// +kubebuilder:rbac:groups="";events.k8s.io,resources=events,verbs=create;patch
