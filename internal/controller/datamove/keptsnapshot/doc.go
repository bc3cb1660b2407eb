// Package keptsnapshot deletes the CSI snapshots that were kept for incremental uploads, when they are of no more use.
//
// The driver keeps the snapshot of an upload by a label on the VolumeSnapshot in Varve's namespace
// (datamove.LabelKeptSnapshot), as the last step of the upload's disposal. From then on the VolumeSnapshot is this
// controller's alone. The controller has no memory: each look lists what is labelled, and reads anew what each is
// kept for. So whatever died, and whatever was deleted while it was away, the next look finds what is left. There is
// a look at its start, after each DataUpload that ends or goes, and every minute.
//
// A snapshot stays as long as its DataUpload is Completed and not deleted, its claim is there, the setting of its StorageClass asks for it, and
// its driver announces a SnapshotMetadata service. Of several for one claim and repository, that of the upload that completed last stays. The
// next one is there before the last one goes. While another upload of the claim runs, which may count from one of them, a few more stay. What cannot be
// examined stays, and holds up no other one. A look costs a request for each claim and for each driver. It
// reports how many there are.
//
// A deletion is one request with the VolumeSnapshot's UID. Its content has the policy Delete, so that snapshot-controller and the driver do the
// rest, and try until it is done.
package keptsnapshot

// +kubebuilder:rbac:groups=snapshot.storage.k8s.io,resources=volumesnapshots,namespace=varve,verbs=list;delete
// +kubebuilder:rbac:groups=cbt.storage.k8s.io,resources=snapshotmetadataservices,verbs=get
// +kubebuilder:rbac:groups=velero.io,resources=datauploads,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=get
// +kubebuilder:rbac:groups="",resources=configmaps,resourceNames=varve,namespace=varve,verbs=get
