// Package machinegroup backs a running machine up for the DataUploads of its disks: one VirtualMachineBackup for each group of DataUploads, so
// that all of them store one moment.
//
// The driver (package drive) makes the mover pods; this controller makes the backup, named after the group, once all
// DataUploads of the group exist and one of them is taken. It gives each mover pod its Secret, and tells the launcher
// where the pods are, in status.pullTunnels. When the restore points of all disks are published, it marks the backup
// as stored and deletes it, which is a success and moves the tracker. When every DataUpload has ended and one of them
// did not store its disk, it deletes the backup without the mark: the backup fails, and the tracker stays.
//
// A group is one of its DataUploads' namespace, of its name, and of the machine's namespace: DataUploads of another machine's namespace are
// another group's.
//
// A group has one moment. Once a DataUpload of it has seen its backup, or has ended, no other backup is made: what a second one shows is
// another moment. The DataUploads that remain are refused by their exposer.
//
// If the DataUploads name a definition of the machine, the Secret of each mover pod has a copy of it. Without the Secret with the definition
// no backup is made, and no pod starts to read: a restore point is not published without what it was to have.
//
// decide is a pure function of what was read from the API server to one write; it may die after any.
package machinegroup

// +kubebuilder:rbac:groups=velero.io,resources=datauploads,verbs=get;list;watch
// +kubebuilder:rbac:groups=backup.kubevirt.io,resources=virtualmachinebackups,verbs=get;list;watch;create;delete;patch
// +kubebuilder:rbac:groups=backup.kubevirt.io,resources=virtualmachinebackups/status,verbs=get;patch
// +kubebuilder:rbac:groups="",resources=pods,verbs=get
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;create;update
// +kubebuilder:rbac:groups="",resources=configmaps,resourceNames=varve,namespace=varve,verbs=get
// +kubebuilder:rbac:groups="";events.k8s.io,resources=events,verbs=create;patch
