// Package harvesterschedule makes backups of whole machines at the times that a ScheduleVMBackup gives, and removes
// old ones.
//
// A run is one due time. It makes one VirtualMachineBackup, whose name follows from the schedule's UID and the due
// time: so a run is made once, whichever replica of the controller makes it, and however often it is begun anew. What
// was due while no controller ran is made up for by the newest of these runs alone. A run that makes no backup leaves
// a record of why in the status, as does one whose backup failed.
//
// A run whose backup failed after it had begun makes another one a while later, whose name follows from the time that
// the status has for it. It is counted as a failure when no time is left before the next run, or with the third backup.
//
// An alarm clock (alarms) wakes a schedule when it is due. Between two due times a schedule costs its metadata in
// memory and nothing else: its backups are read when something became of one of them, or of the schedule.
//
// After maxFailure failures in a row the schedule suspends itself: first the spec says so, and then the status. So a
// spec that is not suspended beside a status that is means that somebody wants it to go on.
package harvesterschedule

// +kubebuilder:rbac:groups=harvesterhci.io,resources=schedulevmbackups,verbs=get;list;watch;patch;update
// +kubebuilder:rbac:groups=harvesterhci.io,resources=schedulevmbackups/status,verbs=get;patch;update
// +kubebuilder:rbac:groups=harvesterhci.io,resources=virtualmachinebackups,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachines,verbs=get
// +kubebuilder:rbac:groups=velero.io,resources=backupstoragelocations,verbs=get;list;watch
// +kubebuilder:rbac:groups="";events.k8s.io,resources=events,verbs=create;patch
