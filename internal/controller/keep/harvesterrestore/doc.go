// Package harvesterrestore brings whole virtual machines back: for a VirtualMachineRestore it makes a claim and a
// DataDownload for each disk of a VirtualMachineBackup, then the machine on these claims, and starts it.
//
// A machine that exists is never touched: the restored one needs a free name, and is known again by an annotation with
// the restore's UID. The restore writes into its status what it is going to make, before it makes anything, and goes on
// from there after a restart. When it has failed, what it has made stays for a look, and goes with the restore's
// deletion, unless the machine is there: then the claims are the machine's.
package harvesterrestore

// +kubebuilder:rbac:groups=harvesterhci.io,resources=virtualmachinebackups,verbs=get
// +kubebuilder:rbac:groups=harvesterhci.io,resources=virtualmachinerestores,verbs=get;list;watch;patch;update
// +kubebuilder:rbac:groups=harvesterhci.io,resources=virtualmachinerestores/status,verbs=get;patch;update
// +kubebuilder:rbac:groups=harvesterhci.io,resources=virtualmachinerestores/finalizers,verbs=update
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachines,verbs=get;create;patch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachines/status,verbs=patch
// +kubebuilder:rbac:groups=velero.io,resources=datadownloads,verbs=get;create;patch;delete
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=get;create;delete
// +kubebuilder:rbac:groups="",resources=secrets;configmaps,verbs=get;create;delete
// +kubebuilder:rbac:groups="",resources=nodes,verbs=get;list;watch
// +kubebuilder:rbac:groups=storage.k8s.io,resources=storageclasses,verbs=get;list;watch
// +kubebuilder:rbac:groups="";events.k8s.io,resources=events,verbs=create;patch
