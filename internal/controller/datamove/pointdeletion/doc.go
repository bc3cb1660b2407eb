// Package pointdeletion has the restore points of deleted DataUploads deleted, by Jobs, and takes part in the deletion of Velero's backups.
//
// The driver's finalizer keeps a DataUpload that is deleted and has a restore point, or may have one because its
// mover had begun. The controller says on it, in datamove.AnnotationPointDeletion, how far the deletion of its
// restore point is: it waits, with the reason; it is done; or the restore point is left, and nobody waits for it. One
// Job for a repository at a time deletes up to datamove.DeletionLimit restore points: nobody but the pods of Jobs has
// access to repositories.
//
// A restore point is deleted for the DataUpload that made it, which its ID says, or for a DeleteBackupRequest, whose backup it belongs to by
// its own labels. It is kept while its backup is in the location, while another DataUpload refers to it, and while it is pinned or locked. What
// cannot be asked is tried again. When its location is gone, or has another repository, the restore point is left after leaveAfter: data that
// nobody can reach must not keep a namespace for ever. In a namespace that is being deleted it is left at once.
//
// Everything that must survive a restart is on the DataUpload or in the Job; every step can be repeated.
package pointdeletion

// +kubebuilder:rbac:groups=velero.io,resources=datauploads,verbs=get;list;watch;patch;delete
// +kubebuilder:rbac:groups=velero.io,resources=deletebackuprequests,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=velero.io,resources=backupstoragelocations,verbs=get;list;watch
// +kubebuilder:rbac:groups=velero.io,resources=backuprepositories,namespace=varve,verbs=get;list;watch;create
// +kubebuilder:rbac:groups=batch,resources=jobs,namespace=varve,verbs=get;list;watch;create;delete
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=pods,namespace=varve,verbs=list
// +kubebuilder:rbac:groups="",resources=events,namespace=varve,verbs=list
// +kubebuilder:rbac:groups="";events.k8s.io,resources=events,verbs=create;patch
