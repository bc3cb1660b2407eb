// Package utilityvolume attaches the utility volumes of a running instance to its node and detaches them again (VEP
// 86).
//
// An attachment pod brings a volume to the node: it mounts the volume's claim there and does nothing else. From
// AttachedToNode on, the node's handler mounts the volume's directory into the launcher pod. When a volume was
// removed from the spec and is out of the launcher pod, the handler reports UnMountedFromPod. Then the controller
// deletes the attachment pod, and once the pod is gone it removes the entry in volumeStatus.
//
// When the instance has ended, nothing is mounted any more and the attachment pods are deleted at once. The
// exception is the pod of a backup whose partial files the handler still removes through it; that wait is bounded.
//
// decide and attachmentPod are pure. An attachment pod's name follows from the instance's UID and the volume's name.
package utilityvolume

// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances,verbs=get;list;watch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances/status,verbs=get;update;patch
// +kubebuilder:rbac:groups=backup.kubevirt.io,resources=virtualmachinebackups,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch;create;delete
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups="",resources=nodes,verbs=get;list;watch
// +kubebuilder:rbac:groups="";events.k8s.io,resources=events,verbs=create;patch
