package agent

// What the agent may do: make and read its Node and InstanceManager, write their status, read images, record events
// on them, and find out which volumes have no object any more.
//
// +kubebuilder:rbac:groups=longhorn.io,resources=nodes;instancemanagers,verbs=get;list;watch;create
// +kubebuilder:rbac:groups=longhorn.io,resources=nodes,verbs=patch
// +kubebuilder:rbac:groups=longhorn.io,resources=nodes/status;instancemanagers/status,verbs=update
// +kubebuilder:rbac:groups=longhorn.io,resources=backingimages,verbs=get;list;watch
// +kubebuilder:rbac:groups=longhorn.io,resources=volumes;replicas,verbs=get;list
// +kubebuilder:rbac:groups="",resources=persistentvolumes,verbs=get
// +kubebuilder:rbac:groups=events.k8s.io;"",resources=events,verbs=create;patch
