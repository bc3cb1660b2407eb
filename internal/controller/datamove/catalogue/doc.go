// Package catalogue makes a BackupRepository for each repository that is in a location, so that a cluster which has nothing but the location
// learns what is there: what other clusters have stored, or this one before it was made again.
//
// A directory below the location's plugins/varve/ whose format says which repository it is counts, and nothing else. The object has the
// unique ID from the start: it stands for that repository, so that none is ever made on its account, and one that goes later is said to be
// gone. An object that is there already stays as it is. Restore points are no objects.
//
// A location is looked at every spec.backupSyncPeriod. That takes one listing, and one read for each repository that has no object yet.
// Where only pods can look, the pod that tries the location looks as well (package backupstoragelocation), and a Recorder records it.
// Nothing is written to a location.
package catalogue

// +kubebuilder:rbac:groups=velero.io,resources=backupstoragelocations,verbs=get;list;watch
// +kubebuilder:rbac:groups=velero.io,resources=backuprepositories,namespace=varve,verbs=get;list;watch;create
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get
// +kubebuilder:rbac:groups="";events.k8s.io,resources=events,verbs=create;patch
