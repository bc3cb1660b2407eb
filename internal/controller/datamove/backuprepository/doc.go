// Package backuprepository makes repositories and keeps what mover pods need to open them.
//
// A BackupRepository in Varve's namespace says that the volumes of a namespace are to go into a location. The controller makes the
// repository there, or opens the one that is there, and keeps the Secret of the same name with its datamove.Access. It tries the
// repository at intervals and says in status what is wrong; whatever is put right makes it Ready again by itself.
//
// Passwords are in Secrets of their own, one a location or one a namespace. A password is there before its repository, and the controller
// never deletes or changes one. It makes none where a repository is already: a repository without its password cannot be read by anybody,
// and a new password would only hide that.
//
// A repository is known by its unique ID, which is noted on the BackupRepository. Another one in its place is not used, and one that is gone
// is not made again. When the location is deleted, the BackupRepository goes with its Secret; the data and the password stay.
//
// Maintenance runs in Jobs, one for a repository at a time; what they did is in status.recentMaintenance.
//
// No pass waits for a storage: that is an errand's work. What status, events and errors say holds no secret.
package backuprepository

// +kubebuilder:rbac:groups=velero.io,resources=backupstoragelocations,verbs=get;list;watch
// +kubebuilder:rbac:groups=velero.io,resources=backuprepositories,namespace=varve,verbs=get;list;watch;patch;delete
// +kubebuilder:rbac:groups=velero.io,resources=backuprepositories/finalizers,namespace=varve,verbs=update
// +kubebuilder:rbac:groups=batch,resources=jobs,namespace=varve,verbs=get;list;watch;create;delete
// +kubebuilder:rbac:groups="",resources=pods,namespace=varve,verbs=list
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;create;update;delete
// +kubebuilder:rbac:groups="";events.k8s.io,resources=events,verbs=create;patch
