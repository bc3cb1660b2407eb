// Package virtualmachineinstance turns an instance into its launcher pod, and the pod's life into the instance's phase.
//
// The controller writes phase up to Scheduled and the final phases; between them the handler of the node writes. The launcher
// pod carries a finalizer that is removed only when the instance has a final phase: however a pod ends, and whether or not the
// controller was up, the way in which it ended is seen. If the instance itself is gone, the finalizer is removed once the pod has
// ended. An instance keeps its own finalizer until its launcher pod and its attachment pods are gone, so that no second guest ever
// starts on the disks of the first.
//
// Before the launcher pod is made, the run is written on every claim that the pod mounts writable (package runepoch), and an instance whose
// claims another guest may write to is held until that guest's pod is provably gone. Pods of others are looked for then, and once more when the
// launcher runs. The runs of an instance that ends before it was handed to a handler, or whose launcher was never told to start the guest, are
// taken back: they wrote nothing.
//
// Decide and Pod are pure. The pod's name follows from the instance's UID, so that a repeated creation makes no second pod; that a
// pod is gone is believed only when the API server says it, past the cache.
package virtualmachineinstance

// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances,verbs=get;list;watch;update;patch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances/status,verbs=get;update;patch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances/finalizers,verbs=update
// +kubebuilder:rbac:groups=kubevirt.io,resources=kubevirts,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch;create;delete;update;patch
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=storage.k8s.io,resources=storageclasses,verbs=get;list;watch
// +kubebuilder:rbac:groups="";events.k8s.io,resources=events,verbs=create;patch
