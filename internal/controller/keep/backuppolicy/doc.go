// Package backuppolicy gives each virtual machine that a BackupPolicy selects a ScheduleVMBackup of its own, and
// deletes the schedule of a machine that the policy does not select any more.
//
// What the schedules are is the policy's: it puts back what somebody else changes in cron, retain, maxFailure or the
// annotations of the template. Whether one of them is suspended is the schedule's own: the policy writes spec.suspend
// when it makes the schedule, and when the template has another value than the last time. Otherwise a schedule that has
// suspended itself after failures would go on, and one that a user has suspended too.
//
// A schedule is the policy's if it has the policy's UID as a label, and the name that follows from the policy and from
// the schedule's machine. No other one is touched. The garbage collector deletes the schedules of a deleted policy.
// Backups stay in all cases: a schedule that is made again under the same name for the same machine adopts them.
//
// Of machines only the metadata is read, which all providers of the kind have.
package backuppolicy

// +kubebuilder:rbac:groups=varvebackup.io,resources=backuppolicies,verbs=get;list;watch
// +kubebuilder:rbac:groups=varvebackup.io,resources=backuppolicies/status,verbs=get;patch;update
// +kubebuilder:rbac:groups=varvebackup.io,resources=backuppolicies/finalizers,verbs=update
// +kubebuilder:rbac:groups=harvesterhci.io,resources=schedulevmbackups,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachines,verbs=get;list;watch
