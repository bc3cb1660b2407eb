package agent

// What the agent does with objects. Policies (deploy/store/admission.yaml) hold it to its own node.
//
// +kubebuilder:rbac:groups=longhorn.io,resources=backingimages,verbs=get;list;watch
// +kubebuilder:rbac:groups=longhorn.io,resources=nodes,verbs=get;list;watch;create
// +kubebuilder:rbac:groups=longhorn.io,resources=nodes/status,verbs=update
// +kubebuilder:rbac:groups=longhorn.io,resources=instancemanagers,verbs=get;list;create
// +kubebuilder:rbac:groups=longhorn.io,resources=instancemanagers/status,verbs=update
