// Package migration moves running guests to other nodes, one for each VirtualMachineInstanceMigration.
//
// A migration waits in Pending for the instance's utility volumes and backup, and for its turn. In Scheduling it gets
// a target pod, which is the instance's launcher pod on another node, a Secret with the token by which the two
// launchers know each other, and a pod that brings the token to the source's node. When both pods run, the controller
// writes status.migrationState on the instance, and the handlers of the two nodes take over. Package
// virtualmachineinstance makes the target pod the instance's when they have finished, and deletes the pods that are
// no longer needed.
//
// Up to that write nothing has happened to the guest, so the controller ends a migration by itself. From then on it
// ends one only while the target does not listen yet. Later it asks for an abort, and the source's handler ends the
// migration. Whatever dies, the guest is in the source pod until the instance's status says that the migration has
// completed.
//
// Names of children follow from the UIDs of the instance and of the migration. decide is pure. One worker runs, and
// it counts the migrations that run on live reads, so that the limits hold.
package migration

// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstancemigrations,verbs=get;list;watch;update;patch;delete
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstancemigrations/status,verbs=get;update;patch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstancemigrations/finalizers,verbs=update
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances,verbs=get;list;watch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances/status,verbs=get;update;patch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances/finalizers,verbs=update
// +kubebuilder:rbac:groups=kubevirt.io,resources=kubevirts,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch;create
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=secrets,verbs=create;delete
// +kubebuilder:rbac:groups="";events.k8s.io,resources=events,verbs=create;patch
