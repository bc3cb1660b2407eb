// Package virtualmachine reconciles VirtualMachines: it creates and deletes the instance of each as its run
// strategy and the requests in its status say, with KubeVirt's semantics.
//
// Everything that a later step depends on is written to the VM's status before the step is taken. A failed instance
// is counted and its successor requested before it is deleted, and a request is removed only when its effect is
// visible. So a controller that stops at any line continues where it was. decide makes the whole decision, and is
// pure.
//
// Status is written with the resource version that was read. If somebody else wrote in between, that write wins and
// the decision is made again. Before it creates an instance, the controller repeats the decision on what the API
// server has, bypassing the cache.
package virtualmachine

// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachines,verbs=get;list;watch;update;patch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachines/status,verbs=get;update;patch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachines/finalizers,verbs=update
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances,verbs=get;list;watch;create;delete
// +kubebuilder:rbac:groups=kubevirt.io,resources=kubevirts,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get;list;watch
// +kubebuilder:rbac:groups="";events.k8s.io,resources=events,verbs=create;patch
