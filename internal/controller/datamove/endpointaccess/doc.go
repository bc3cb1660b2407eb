// Package endpointaccess gives mover pods what opens the endpoints of pull backups that somebody else makes, and deletes such a backup when
// all its disks are stored and a DataUpload asks for that.
//
// It follows the note that
// the exposer leaves on a DataUpload (datamove.ReadBackup), which says which backup is read, and whether its disk is stored.
//
// It does the same for the exports of stopped machines, which VirtualMachineBackups of harvesterhci.io make: their mover pods get the
// definition of the machine as well, if they are to store it. Whoever made the export deletes it.
//
// The token comes from the Secret that the backup itself names, and goes into a Secret in Varve's namespace that has the name of the mover
// pod, and that the pod owns. So it is there no longer than the pod. Both are looked at again while the pod lives, because tokens and
// certificates are rotated. Only DataUploads that Varve serves by its settings are followed.
//
// A backup is deleted as a success: only while it is Ready, as it was read, when each of its disks has a completed DataUpload and none that
// reads it is still on its way. Everything can be repeated.
package endpointaccess

// +kubebuilder:rbac:groups=velero.io,resources=datauploads,verbs=get;list;watch
// +kubebuilder:rbac:groups=backup.kubevirt.io,resources=virtualmachinebackups,verbs=get;list;watch;delete
// +kubebuilder:rbac:groups=export.kubevirt.io,resources=virtualmachineexports,verbs=get
// +kubebuilder:rbac:groups="",resources=pods,verbs=get
// +kubebuilder:rbac:groups="",resources=pods,namespace=varve,verbs=list;watch
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;create;update
// +kubebuilder:rbac:groups="",resources=configmaps,resourceNames=varve,namespace=varve,verbs=get
// +kubebuilder:rbac:groups="";events.k8s.io,resources=events,verbs=create;patch
