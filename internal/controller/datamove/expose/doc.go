// Package expose makes the volume of a DataUpload or a DataDownload accessible to a mover pod, hands a restored
// volume to the claim that waits for it, and disposes of everything that was made. CSI does so for snapshots, Restore
// for restored volumes. Two make nothing: Endpoints is for disks of pull backups that somebody else makes, Tunnel for
// disks of running machines.
//
// Each call is one step: it reads what there is, makes or removes what can be made or removed now, and returns what it waits for. No
// call blocks, each may be repeated, and the next may come from another process after a crash between any two requests to the API
// server. What cannot be read from the objects is in a note on the DataUpload or the DataDownload (datamove.AnnotationExposed), which
// is written before the step that needs it.
//
// Two rules hold at any time. A snapshot on the storage has one VolumeSnapshotContent with the policy Delete, except while one hands it
// over to the other, and the note names both. A restored volume belongs to the claim in Varve's namespace, to the target claim, or to
// the note. An object that has the right name and is another one, by its UID, is never changed.
//
// Reads never come from a cache: what a cache does not have yet would be left behind.
//
// What is made has the label datamove.LabelObject and the name datamove.ChildName: for a DataUpload a VolumeSnapshotContent, a
// VolumeSnapshot and a PersistentVolumeClaim, for a DataDownload a PersistentVolumeClaim. What is only read or changed is found
// through the object and has no label: the snapshot that Velero made and its content, the claim that it is of, the target claim, and
// PersistentVolumes. Nothing is ever written to a claim outside of Varve's namespace: the cluster binds a target claim to a volume whose
// claimRef has its UID.
//
// The own VolumeSnapshot of an upload may outlive its disposal, for the next upload of the claim (csi_keep.go). Then another label says so, and a
// controller deletes it.
//
// The pod must be gone before Finish and Dispose can end, because a claim stays while a pod uses it.
package expose

// What exposing needs of the API server. Names are not known before, so no rule can name them: who has the
// controller's token can delete any snapshot, and give any volume to any claim.
//
// +kubebuilder:rbac:groups=snapshot.storage.k8s.io,resources=volumesnapshots,verbs=get;delete
// +kubebuilder:rbac:groups=snapshot.storage.k8s.io,resources=volumesnapshots,namespace=varve,verbs=create;patch
// +kubebuilder:rbac:groups=snapshot.storage.k8s.io,resources=volumesnapshotcontents,verbs=get;create;patch;delete
// +kubebuilder:rbac:groups=cbt.storage.k8s.io,resources=snapshotmetadataservices,verbs=get
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=get
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,namespace=varve,verbs=create;delete
// +kubebuilder:rbac:groups="",resources=services,verbs=get
// +kubebuilder:rbac:groups="",resources=persistentvolumes,verbs=get;patch
// +kubebuilder:rbac:groups="",resources=events,namespace=varve,verbs=list
// +kubebuilder:rbac:groups=storage.k8s.io,resources=storageclasses,verbs=get
// +kubebuilder:rbac:groups=backup.kubevirt.io,resources=virtualmachinebackups;virtualmachinebackuptrackers,verbs=get
// +kubebuilder:rbac:groups=export.kubevirt.io,resources=virtualmachineexports,verbs=get
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances,verbs=get
// +kubebuilder:rbac:groups=velero.io,resources=datauploads;datadownloads,verbs=patch
