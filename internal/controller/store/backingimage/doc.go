// Package backingimage decides what becomes of images: which disk has the first copy, who makes it, which disks have
// further copies, which copies go, and what an image's status says. It calls no node. The stores read what it writes
// into spec.diskFileSpecMap and status, and it reads what they write into their InstanceManagers and Nodes.
//
// The first copy is written by a pod that has nothing but a block device, the volume source-<uuid>. If that fails,
// the disk leaves spec.diskFileSpecMap so that its store deletes what is there. After a pause a disk is chosen anew.
//
// The pod of an upload waits until a user's command connects to it. The store reports that it waits, and the condition
// Ready says what to run.
//
// A clone of an image and an image of a volume need no pod: the store of a disk that has the other image or the volume
// makes the first copy of that. The controller waits until the other image is ready, or the volume is detached.
//
// A restore has no source pod either: the data mover writes the restore point of a repository to the volume, for a
// DataDownload that the image owns. It is deleted, and with it the mover pod, before the volume is.
//
// A copy that nothing reports is unknown, and no more: no decision deletes a copy because a report is missing. A copy
// goes only when another one is reported as ready, and never while a Replica on its disk uses it.
//
// An image that is deleted keeps its finalizer until each store has reported, after the deletion, that its disks have
// no copy. A node that is down holds the deletion, and the condition Ready names it. If the node is gone for good,
// delete its Node in the group longhorn.io: disks that no Node lists are not waited for. If it comes back later, its
// store reports the copy as one that no image names.
package backingimage

// +kubebuilder:rbac:groups=velero.io,namespace=varve,resources=datadownloads,verbs=get;list;watch;create;delete
// +kubebuilder:rbac:groups=velero.io,namespace=varve,resources=backupstoragelocations,verbs=get
// +kubebuilder:rbac:groups="",resources=nodes,verbs=list
// +kubebuilder:rbac:groups="",resources=configmaps,resourceNames=varve,namespace=varve,verbs=get
// +kubebuilder:rbac:groups=longhorn.io,namespace=varve,resources=backingimages,verbs=get;list;watch;patch;update
// +kubebuilder:rbac:groups=longhorn.io,namespace=varve,resources=backingimages/status,verbs=get;patch;update
// +kubebuilder:rbac:groups=longhorn.io,namespace=varve,resources=backingimages/finalizers,verbs=update
// +kubebuilder:rbac:groups=longhorn.io,namespace=varve,resources=nodes;instancemanagers;volumes;replicas,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=persistentvolumes,verbs=get;create;delete
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,namespace=varve,verbs=create;delete
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch;create;delete,namespace=varve
// +kubebuilder:rbac:groups="",resources=events,namespace=varve,verbs=list
// +kubebuilder:rbac:groups=events.k8s.io;"",resources=events,verbs=create;patch
