// Package harvesterbackup backs whole virtual machines up: one VirtualMachineBackup of harvesterhci.io becomes one
// DataUpload for each disk, all of one moment, and the machine's definition goes into the repository with them.
//
// The user names nothing but the machine. What the disks need is made here: the tracker, one for each machine and
// location, which stays and goes with the machine; the claim for what the guest overwrites meanwhile, which goes with
// the backup's end; and the Secret with the definition in Varve's namespace, which goes then, too. The group of
// DataUploads does the rest (package machinegroup).
//
// The disks of a machine that is stopped are read from an export of it, which is made for the backup and goes with its end.
// The status has what tells that somebody could write to them since. A backup is ready only if nobody could: that is
// looked at after the last disk is stored. Otherwise it fails, and what it has stored goes.
//
// Beside KubeVirt, the disks of a machine that runs and whose changes nobody tracks are read from a
// VirtualMachineSnapshot, and from an export of that. Both are made for the backup, and go with its end.
//
// A backup first writes into its status what it is going to store, and then acts on that alone, so that it goes on
// after a restart with the same disks under the same names. It is ready when every disk is stored, each with the
// definition, and has failed when one is not. A backup that has ended has a label, and costs nothing but its metadata
// in memory. Its deletion deletes the DataUploads, and with them the restore points; that of its namespace does not.
//
// A backup may also be found: it names a disk that a location has already, of another cluster or of this one before it was
// made again, and gets everything else from there (package stored). Its deletion deletes nothing that is stored.
//
// A backup of type snapshot is a VirtualMachineSnapshot of snapshot.kubevirt.io: the storage's own snapshots of all disks,
// which stay in the cluster. It needs no location and no tracker, and its deletion deletes them.
package harvesterbackup

// +kubebuilder:rbac:groups=harvesterhci.io,resources=virtualmachinebackups,verbs=get;list;watch;patch;update
// +kubebuilder:rbac:groups=harvesterhci.io,resources=virtualmachinebackups/status,verbs=get;patch;update
// +kubebuilder:rbac:groups=harvesterhci.io,resources=virtualmachinebackups/finalizers,verbs=update
// +kubebuilder:rbac:groups=harvesterhci.io,resources=virtualmachinerestores,verbs=get;list;watch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachines;virtualmachineinstances,verbs=get
// +kubebuilder:rbac:groups=backup.kubevirt.io,resources=virtualmachinebackups,verbs=get;create;delete
// +kubebuilder:rbac:groups=backup.kubevirt.io,resources=virtualmachinebackuptrackers,verbs=get;create
// +kubebuilder:rbac:groups=export.kubevirt.io,resources=virtualmachineexports,verbs=get;create;delete
// +kubebuilder:rbac:groups=snapshot.kubevirt.io,resources=virtualmachinesnapshots,verbs=get;create;delete
// +kubebuilder:rbac:groups=snapshot.kubevirt.io,resources=virtualmachinesnapshotcontents,verbs=get
// +kubebuilder:rbac:groups=snapshot.storage.k8s.io,resources=volumesnapshots,verbs=get
// +kubebuilder:rbac:groups="",resources=pods,verbs=list
// +kubebuilder:rbac:groups=velero.io,resources=datauploads,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=velero.io,resources=datadownloads,verbs=get;create;delete
// +kubebuilder:rbac:groups=velero.io,resources=backupstoragelocations,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=get;create;delete
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;create;delete
// +kubebuilder:rbac:groups="",resources=configmaps,verbs=get
// +kubebuilder:rbac:groups=storage.k8s.io,resources=storageclasses,verbs=get;list;watch
// +kubebuilder:rbac:groups="";events.k8s.io,resources=events,verbs=create;patch
