// Package utilityvolume brings the utility volumes of a running instance to its node and takes them away again (VEP 86).
//
// A volume gets there by an attachment pod, which mounts its claim on the instance's node and does nothing. From AttachedToNode on the
// node's handler mounts the volume's directory into the launcher pod, and reports UnMountedFromPod when a volume that was
// removed from the spec is out of it; then the attachment pod goes, and when it is gone, so does the entry in volumeStatus.
//
// When the instance has ended nothing is mounted any more and the attachment pods go at once, but for those of a backup whose partial
// files the handler still removes through them; that wait is bounded.
//
// Decide and Pod are pure. An attachment pod's name follows from the instance's UID and the volume's name.
package utilityvolume

// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances,verbs=get;list;watch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances/status,verbs=get;update;patch
// +kubebuilder:rbac:groups=backup.kubevirt.io,resources=virtualmachinebackups,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch;create;delete
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups="",resources=nodes,verbs=get;list;watch
// +kubebuilder:rbac:groups="";events.k8s.io,resources=events,verbs=create;patch
