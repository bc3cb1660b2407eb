// Package harvesterrestore brings whole virtual machines back: for a VirtualMachineRestore it makes a claim and a
// DataDownload for each disk of a VirtualMachineBackup, then the machine on these claims, and starts it.
//
// A new machine needs a free name, and is known again by an annotation with the restore's UID. A machine that exists is
// replaced only if the restore asks for that: it is the one that was backed up, or the user confirms its UID; it is
// stopped, with no instance that could write to its disks; and its old claims go, if they may, when the restored machine is
// ready, and nobody has them. The restore writes into its status what it is going to make, before it makes anything, and goes on
// from there after a restart. When it has failed, what it has made stays for a look, and goes with the restore's
// deletion, unless the machine is there: then the claims are the machine's.
//
// The disks of a backup of type snapshot are in VolumeSnapshots of its namespace. The claims are made of these, there is no
// DataDownload, and the machine gets the Secrets and ConfigMaps of their names that are there.
package harvesterrestore

// +kubebuilder:rbac:groups=harvesterhci.io,resources=virtualmachinebackups,verbs=get
// +kubebuilder:rbac:groups=harvesterhci.io,resources=virtualmachinerestores,verbs=get;list;watch;patch;update
// +kubebuilder:rbac:groups=harvesterhci.io,resources=virtualmachinerestores/status,verbs=get;patch;update
// +kubebuilder:rbac:groups=harvesterhci.io,resources=virtualmachinerestores/finalizers,verbs=update
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachines,verbs=get;list;create;update;patch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances,verbs=get;list
// +kubebuilder:rbac:groups=velero.io,resources=datadownloads,verbs=get;create;patch;delete
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=get;create;delete
// +kubebuilder:rbac:groups="",resources=secrets;configmaps,verbs=get;create;delete
// +kubebuilder:rbac:groups=snapshot.storage.k8s.io,resources=volumesnapshots,verbs=get;list
// +kubebuilder:rbac:groups="",resources=pods;events,verbs=list
// +kubebuilder:rbac:groups="",resources=nodes,verbs=get;list;watch
// +kubebuilder:rbac:groups=storage.k8s.io,resources=storageclasses,verbs=get;list;watch
// +kubebuilder:rbac:groups="";events.k8s.io,resources=events,verbs=create;patch
