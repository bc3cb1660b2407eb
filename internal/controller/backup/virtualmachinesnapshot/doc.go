// Package virtualmachinesnapshot reconciles VirtualMachineSnapshots: it has the storage make snapshots of all disks of a
// virtual machine while the guest's file systems are frozen.
//
// A snapshot goes through these steps. Each is written down before the next one begins, and everything has a name that
// follows from the snapshot's UID, so that another controller continues at any line:
//
//	plan    choose the volumes, make the VirtualMachineSnapshotContent, and ask for the freeze
//	cut     wait for the handler of the guest's node, make one VolumeSnapshot a volume, and wait until the storage has
//	        taken all of them (status.creationTime)
//	thaw    ask for the thaw, and learn whether the freeze lasted until then
//	finish  wait until all of them can be used
//
// The handler of the node freezes and thaws the guest (package vmsnapshot of the handler), and the launcher ends a freeze
// by itself after 30 seconds. A guest that is not frozen in time is not waited for: the snapshot is then crash
// consistent, and status.sourceIndications say so. Every way out, also a failure and a deletion, asks for the thaw.
//
// A volume that the guest can write to is in the snapshot, or the snapshot fails. A snapshot fails also if the machine
// starts, stops or restarts before the cut, and removes what it has made. An error of the storage is not final before
// failureDeadline.
//
// Contents and VolumeSnapshots are read from the API server, not from a cache. An object that has one of their names and
// not the label with the snapshot's UID is somebody else's: it is never adopted, changed or deleted. VolumeSnapshots
// belong to the content, which outlives a snapshot with the deletion policy Retain. The kinds of VolumeSnapshots may be
// missing in a cluster, so they are polled and not watched.
package virtualmachinesnapshot

// +kubebuilder:rbac:groups=snapshot.kubevirt.io,resources=virtualmachinesnapshots,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=snapshot.kubevirt.io,resources=virtualmachinesnapshots/status,verbs=patch
// +kubebuilder:rbac:groups=snapshot.kubevirt.io,resources=virtualmachinesnapshots/finalizers,verbs=update
// +kubebuilder:rbac:groups=snapshot.kubevirt.io,resources=virtualmachinesnapshotcontents,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=snapshot.kubevirt.io,resources=virtualmachinesnapshotcontents/status,verbs=patch
// +kubebuilder:rbac:groups=snapshot.storage.k8s.io,resources=volumesnapshots,verbs=get;list;create;delete
// +kubebuilder:rbac:groups=snapshot.storage.k8s.io,resources=volumesnapshotclasses,verbs=list
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachines;virtualmachineinstances,verbs=get
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims;persistentvolumes,verbs=get
// +kubebuilder:rbac:groups="";events.k8s.io,resources=events,verbs=create;patch
