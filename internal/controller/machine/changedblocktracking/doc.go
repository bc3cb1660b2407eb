// Package changedblocktracking decides whether the disks of each machine are tracked for incremental backup. It
// evaluates the selectors of the KubeVirt object, shows the state on the machine and its instance, and keeps the
// claim that holds the overlays.
//
// Whether a running guest is tracked was decided when its instance was created, and does not change. If the
// selectors now want something else, the state is PendingRestart. The handler moves an instance from Initializing
// to Enabled; this package writes every other state. decide makes the whole decision, and is pure.
//
// A claim that has become too small for the overlays is expanded, or succeeded by a larger one that the overlays move to,
// before the launcher pod exists (docs/architecture.md, Changed block tracking). decideClaim decides that, and is pure.
//
// An invalid selector selects nobody and deselects nobody: it is reported, and everything stays as it is.
package changedblocktracking

// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachines,verbs=get;list;watch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachines/status,verbs=get;update;patch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances/status,verbs=get;update;patch
// +kubebuilder:rbac:groups=kubevirt.io,resources=kubevirts,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=get;list;watch;create;delete;patch
// +kubebuilder:rbac:groups=storage.k8s.io,resources=storageclasses,verbs=get;list;watch
// +kubebuilder:rbac:groups="";events.k8s.io,resources=events,verbs=create;patch
