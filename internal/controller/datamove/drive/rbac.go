package drive

// What the controller's service account may do for the data mover. Pods, claims and repositories are Varve's, in
// Varve's namespace. The objects have no status subresource.
//
// +kubebuilder:rbac:groups=velero.io,resources=datauploads;datadownloads,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=velero.io,resources=backupstoragelocations,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=nodes,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=persistentvolumes,verbs=get
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=get;list;watch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch;create;delete,namespace=varve
// +kubebuilder:rbac:groups="",resources=events,verbs=list,namespace=varve
// +kubebuilder:rbac:groups="",resources=configmaps,resourceNames=varve,verbs=get;list;watch,namespace=varve
// +kubebuilder:rbac:groups=velero.io,resources=backuprepositories,verbs=get;list;watch;create,namespace=varve
