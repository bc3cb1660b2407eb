package agent

// What the agent may do: make and read its Node and InstanceManager, write their status, and read images.
//
// +kubebuilder:rbac:groups=longhorn.io,resources=nodes;instancemanagers,verbs=get;list;watch;create
// +kubebuilder:rbac:groups=longhorn.io,resources=nodes/status;instancemanagers/status,verbs=update
// +kubebuilder:rbac:groups=longhorn.io,resources=backingimages,verbs=get;list;watch
