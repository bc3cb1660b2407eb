package datamover

// What the handler's service account may do for the data mover. Pods, claims and repositories are Varve's, in Varve's namespace. The
// objects have no status subresource: a policy (deploy/admission/mover-own-object.yaml) keeps handlers from their spec.
//
// +kubebuilder:rbac:groups=velero.io,resources=datauploads;datadownloads,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=velero.io,resources=backupstoragelocations,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=nodes,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch;create;delete,namespace=varve
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=get;list;watch,namespace=varve
// +kubebuilder:rbac:groups="",resources=events,verbs=list,namespace=varve
// +kubebuilder:rbac:groups="",resources=configmaps,resourceNames=varve,verbs=get;list;watch,namespace=varve
// +kubebuilder:rbac:groups=velero.io,resources=backuprepositories,verbs=get;list;watch;create,namespace=varve
// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,verbs=create,namespace=varve
// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,resourceNames=varve-data-mover,verbs=get;update,namespace=varve
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances,verbs=get
