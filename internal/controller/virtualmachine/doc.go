// Package virtualmachine keeps the instance of each VirtualMachine as its run strategy and the requests in its status
// say, with KubeVirt's semantics.
//
// Everything that a later step depends on is in the VM's status before the step is taken: a failed instance is counted
// and its successor asked for before it is deleted, and a request is removed only when its effect is seen. So a
// controller that stops at any line goes on where it was. Decide is the whole decision, and is pure.
//
// Status is written with the resource version that was read: whoever else wrote in between wins, and the decision is
// made again. Before an instance is created the decision is repeated on what the API server has, past the cache.
package virtualmachine

// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachines,verbs=get;list;watch;update;patch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachines/status,verbs=get;update;patch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachines/finalizers,verbs=update
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances,verbs=get;list;watch;create;delete
// +kubebuilder:rbac:groups=kubevirt.io,resources=kubevirts,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get;list;watch
// +kubebuilder:rbac:groups="";events.k8s.io,resources=events,verbs=create;patch
