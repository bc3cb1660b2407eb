// Package imagebackup stores images in repositories. For a BackupBackingImage it makes a volume through which a pod
// reads the image, on a disk that has a copy, and a DataUpload, which the data mover stores like any other. It calls no
// node.
//
// The volume is image-<UID of the backup>. When a pod needs it, the store of its disk makes it as a clone of the image.
// That keeps the image from being deleted, and the image never changes, so no snapshot is needed. Claim and volume go
// when the DataUpload has ended. The DataUpload stays as long as the backup, because its deletion deletes the restore
// point.
//
// A backup that failed is not tried again: make another one. The copy that it was read from may be wrong, so that an
// annotation of the image has the store of the disk check it at once. A backup also fails if somebody else deletes its
// DataUpload.
package imagebackup

// +kubebuilder:rbac:groups=longhorn.io,namespace=varve,resources=backupbackingimages,verbs=get;list;watch;patch;update
// +kubebuilder:rbac:groups=longhorn.io,namespace=varve,resources=backupbackingimages/status,verbs=get;patch;update
// +kubebuilder:rbac:groups=longhorn.io,namespace=varve,resources=backupbackingimages/finalizers,verbs=update
// +kubebuilder:rbac:groups=longhorn.io,namespace=varve,resources=backingimages;nodes;instancemanagers,verbs=get;list;watch
// +kubebuilder:rbac:groups=longhorn.io,namespace=varve,resources=backingimages,verbs=patch
// +kubebuilder:rbac:groups=velero.io,namespace=varve,resources=datauploads,verbs=get;list;watch;create;delete
// +kubebuilder:rbac:groups=velero.io,namespace=varve,resources=backupstoragelocations,verbs=get;list
// +kubebuilder:rbac:groups="",resources=nodes,verbs=list
// +kubebuilder:rbac:groups="",resources=configmaps,resourceNames=varve,namespace=varve,verbs=get
// +kubebuilder:rbac:groups="",resources=pods,namespace=varve,verbs=list
// +kubebuilder:rbac:groups="",resources=persistentvolumes,verbs=get;create;delete
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,namespace=varve,verbs=create;delete
