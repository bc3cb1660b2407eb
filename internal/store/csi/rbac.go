package csi

// What the driver's service account may do, beside what the agent's needs: the store's own objects, and claims and
// PersistentVolumes as external-provisioner and external-resizer do. Claims and volumes of others are seen too: the API
// server cannot tell them apart.
//
// +kubebuilder:rbac:groups=longhorn.io,resources=volumes;replicas,verbs=get;list;create;patch;delete
// +kubebuilder:rbac:groups=longhorn.io,resources=volumes/status;replicas/status,verbs=patch
// +kubebuilder:rbac:groups=longhorn.io,resources=backingimages,verbs=get
// +kubebuilder:rbac:groups=longhorn.io,resources=instancemanagers;nodes,verbs=get;list
// +kubebuilder:rbac:groups="",resources=persistentvolumes,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=get;list;watch;update
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims/status,verbs=update
// +kubebuilder:rbac:groups="",resources=nodes,verbs=get
// +kubebuilder:rbac:groups="",resources=events,verbs=create;patch;update
// +kubebuilder:rbac:groups=storage.k8s.io,resources=storageclasses,verbs=get;list;watch
// +kubebuilder:rbac:groups=snapshot.storage.k8s.io,resources=volumesnapshotcontents,verbs=get;list;watch;update
// +kubebuilder:rbac:groups=snapshot.storage.k8s.io,resources=volumesnapshotcontents/status,verbs=update
// +kubebuilder:rbac:groups=snapshot.storage.k8s.io,resources=volumesnapshotclasses;volumesnapshots,verbs=get
