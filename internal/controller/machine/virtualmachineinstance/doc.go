// Package virtualmachineinstance reconciles instances: it creates the launcher pod of each, and sets the instance's
// phase from what becomes of the pod.
//
// The controller writes the phases up to Scheduled and the final ones. The phases in between belong to the handler
// of the node.
//
// The launcher pod carries a finalizer that is removed only when the instance has a final phase. So the controller
// sees how a pod ended, however it ended and even if the controller was down at the time. If the instance itself is
// gone, the finalizer is removed once the pod has ended. An instance keeps its own finalizer until its launcher pod
// and its attachment pods are gone, so that a second guest never starts on the disks of the first.
//
// Before it makes the launcher pod, the controller writes the run on every claim that the pod mounts writable
// (package runepoch). An instance whose claims another guest may write to is held until that guest's pod is
// provably gone. At that point the controller also looks for pods that Varve did not make, and looks for them again
// when the launcher of a tracked instance runs. It takes back the runs of an instance that ends before it was
// handed to a handler, or whose launcher was never told to start the guest: such runs wrote nothing.
//
// While a migration moves the guest (package migration), the instance has two launcher pods. The source pod is the
// instance's until the migration has completed, and then the target pod is. If the source pod ends in between, the
// controller waits a minute for the handlers to say whether the guest runs in the target pod. It deletes the pods
// that no migration needs any more.
//
// decide and launcherPod are pure. The pod's name follows from the instance's UID, so creating it twice makes no second
// pod. The controller believes that a pod is gone only if the API server says so, not the cache.
package virtualmachineinstance

// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances,verbs=get;list;watch;update;patch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances/status,verbs=get;update;patch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances/finalizers,verbs=update
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstancemigrations,verbs=get;list;watch
// +kubebuilder:rbac:groups=kubevirt.io,resources=kubevirts,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch;create;delete;update;patch
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=storage.k8s.io,resources=storageclasses,verbs=get;list;watch
// +kubebuilder:rbac:groups="";events.k8s.io,resources=events,verbs=create;patch
