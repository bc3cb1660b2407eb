package v1beta1

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// AnnotationSkipCronCheck is on a ScheduleVMBackup whose due times are not checked: they may be less than an hour
	// apart, and near those of other schedules. The value is "enable". It is Harvester's.
	AnnotationSkipCronCheck = "harvesterhci.io/svmbackupSkipCronCheck"
	// AnnotationSchedule is on a backup that a schedule made: namespace and name of the schedule. It is Harvester's.
	AnnotationSchedule = "harvesterhci.io/svmbackupId"
	// LabelSchedule is on a backup that a schedule made: the UID of the schedule. It is Harvester's.
	LabelSchedule = "harvesterhci.io/svmbackupUID"
	// LabelScheduledTime is on a backup that a schedule made: when it was due, as ScheduledTimeLayout has it. It is
	// Harvester's.
	LabelScheduledTime = "harvesterhci.io/svmbackupTimestamp"
	// AnnotationTimeZone is the time zone of a schedule, such as Europe/Berlin. Without it, it is UTC.
	AnnotationTimeZone = "varvebackup.io/time-zone"
	// AnnotationJitter is on a schedule whose runs begin up to this duration, such as 30m, after they are due: always
	// the same time after it, and another one for each schedule.
	AnnotationJitter = "varvebackup.io/jitter"
	// AnnotationRunAt is on a schedule that is to make a backup at this time, RFC 3339, besides its due times. If a backup
	// runs then, it is made after that. status.lastRequestedTime says whether it was dealt with.
	AnnotationRunAt = "varvebackup.io/run-at"
	// AnnotationAdopt is "true" on a schedule that takes over the backups of deleted schedules of its own name and
	// machine: it removes them as it does its own.
	AnnotationAdopt = "varvebackup.io/adopt-backups"
	// AnnotationKeepHourly and those below are on a schedule that keeps, besides the newest backups, the newest one of
	// each of so many hours, days, weeks, months and years that have one.
	AnnotationKeepHourly  = "varvebackup.io/keep-hourly"
	AnnotationKeepDaily   = "varvebackup.io/keep-daily"
	AnnotationKeepWeekly  = "varvebackup.io/keep-weekly"
	AnnotationKeepMonthly = "varvebackup.io/keep-monthly"
	AnnotationKeepYearly  = "varvebackup.io/keep-yearly"
	// AnnotationKeepWithin is on a schedule that keeps all backups of a span before the newest one, such as 30d or 1y6m.
	AnnotationKeepWithin = "varvebackup.io/keep-within"
	// AnnotationPinned is "true" on a backup that no schedule removes.
	AnnotationPinned = "varvebackup.io/pinned"
	// AnnotationStartBy is on a backup that has to begin until then, RFC 3339: it fails if what it waits for is not
	// there by that time.
	AnnotationStartBy = "varvebackup.io/start-by"
)

// LeastGranularity is how far two due times of a schedule are apart at least, unless AnnotationSkipCronCheck is on it.
const LeastGranularity = time.Hour

// LeastOffset is how far the due times of two schedules with the same granularity are apart at least, unless
// AnnotationSkipCronCheck is on one of them.
const LeastOffset = 10 * time.Minute

// ScheduledTimeLayout is how the time of a run is written in labels and names, in UTC.
const ScheduledTimeLayout = "20060102.1504"

// ScheduleVMBackup makes backups of a virtual machine at times that a cron expression gives, and removes old ones.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=svmbackup;svmbackups,categories=all
// +kubebuilder:metadata:labels="app.kubernetes.io/part-of=varve"
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="CRON",type=string,JSONPath=`.spec.cron`
// +kubebuilder:printcolumn:name="RETAIN",type=integer,JSONPath=`.spec.retain`
// +kubebuilder:printcolumn:name="MAX_FAILURE",type=integer,JSONPath=`.spec.maxFailure`
// +kubebuilder:printcolumn:name="SPEC_SUSPEND",type=boolean,JSONPath=`.spec.suspend`
// +kubebuilder:printcolumn:name="SOURCE",type=string,JSONPath=`.spec.vmbackup.source.name`
// +kubebuilder:printcolumn:name="SUSPENDED",type=boolean,JSONPath=`.status.suspended`
// +kubebuilder:printcolumn:name="FAILURE",type=integer,JSONPath=`.status.failure`
// +kubebuilder:printcolumn:name="LAST_SUCCESS",type=date,JSONPath=`.status.lastSuccessfulTime`
type ScheduleVMBackup struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec ScheduleVMBackupSpec `json:"spec"`
	// +optional
	Status ScheduleVMBackupStatus `json:"status,omitempty"`
}

// ScheduleVMBackupList is a list of ScheduleVMBackups.
//
// +kubebuilder:object:root=true
type ScheduleVMBackupList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []ScheduleVMBackup `json:"items"`
}

// ScheduleVMBackupSpec says what is backed up when, and how many backups stay.
//
// +kubebuilder:validation:XValidation:rule="self.maxFailure < self.retain",message="maxFailure must be less than retain",fieldPath=".maxFailure"
type ScheduleVMBackupSpec struct {
	// cron gives the times: minute, hour, day of the month, month and day of the week, or @hourly, @daily, @weekly,
	// @monthly or @yearly. They are in UTC, unless the annotation varvebackup.io/time-zone or a prefix such as
	// "CRON_TZ=Europe/Berlin" names another time zone. Two due times are an hour apart or more, unless the annotation
	// harvesterhci.io/svmbackupSkipCronCheck is "enable".
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Cron string `json:"cron"`
	// retain is how many backups stay. Of those that can be restored, the newest stay, and what is pinned beside them.
	// +kubebuilder:default=8
	// +kubebuilder:validation:Minimum=2
	// +kubebuilder:validation:Maximum=250
	Retain int `json:"retain"`
	// maxFailure is how many backups may fail one after the other before the schedule is suspended. It is less than
	// retain.
	// +kubebuilder:default=4
	// +kubebuilder:validation:Minimum=2
	MaxFailure int `json:"maxFailure"`
	// suspend is true while no backups are to be made. It is also set when maxFailure is reached; setting it back to
	// false removes the backups that failed, and makes backups again.
	// +kubebuilder:default=false
	// +optional
	Suspend bool `json:"suspend"`
	// vmbackup is what the backups are made of. It cannot be changed.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="is immutable: create another schedule"
	VMBackupSpec VirtualMachineBackupSpec `json:"vmbackup"`
}

// ScheduleVMBackupStatus says which backups there are, and what became of the latest runs.
type ScheduleVMBackupStatus struct {
	// vmbackupInfo has the schedule's backups, the oldest first: the latest 250.
	// +optional
	// +listType=atomic
	VMBackupInfo []VMBackupInfo `json:"vmbackupInfo,omitempty"`
	// failure is how many backups have failed since the last one that succeeded.
	// +optional
	Failure int `json:"failure,omitempty"`
	// suspended is true while no backups are made.
	// +optional
	Suspended bool `json:"suspended,omitempty"`
	// conditions are BackupSuspend, which says why the schedule is suspended, and Ready, which is False if the
	// schedule can make no backups as it is.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
	// observedCron is the expression that the due times follow, with its time zone.
	// +optional
	ObservedCron string `json:"observedCron,omitempty"`
	// lastScheduleTime is the latest due time that was dealt with: by a backup, or by a record of why there is none.
	// It is when the schedule was made, or went on, if none has been since.
	// +optional
	// +nullable
	LastScheduleTime *metav1.Time `json:"lastScheduleTime,omitempty"`
	// lastRequestedTime is what varvebackup.io/run-at said when it was last dealt with, by a backup or by a record of why
	// there is none.
	// +optional
	// +nullable
	LastRequestedTime *metav1.Time `json:"lastRequestedTime,omitempty"`
	// nextScheduleTime is when the next backup is due.
	// +optional
	// +nullable
	NextScheduleTime *metav1.Time `json:"nextScheduleTime,omitempty"`
	// lastSuccessfulTime is when the latest backup that can be restored was complete.
	// +optional
	// +nullable
	LastSuccessfulTime *metav1.Time `json:"lastSuccessfulTime,omitempty"`
	// runs are the latest runs, the newest first.
	// +optional
	// +listType=atomic
	Runs []ScheduledRun `json:"runs,omitempty"`
}

// RunResult is what became of a run.
type RunResult string

const (
	// RunStarted: the backup was made, and has not ended.
	RunStarted RunResult = "Started"
	// RunSucceeded: the backup can be restored.
	RunSucceeded RunResult = "Succeeded"
	// RunRetrying: the backup failed, and another one is made for the run at its retryTime.
	RunRetrying RunResult = "Retrying"
	// RunFailed: the backup failed, and all further attempts.
	RunFailed RunResult = "Failed"
	// RunDeleted: the backup was deleted before it ended.
	RunDeleted RunResult = "Deleted"
	// RunSkipped: no backup was made, for a reason of the moment.
	RunSkipped RunResult = "Skipped"
	// RunMissed: no controller ran when the backup was due, and a later one was made instead.
	RunMissed RunResult = "Missed"
)

// RunRequested is the reason of a run that AnnotationRunAt asked for.
const RunRequested = "Requested"

// Reasons of a run that was skipped.
const (
	// SkippedOverlap: the backup before it had not ended.
	SkippedOverlap = "Overlap"
	// SkippedSuspended: the schedule is suspended.
	SkippedSuspended = "Suspended"
	// SkippedNoMachine: the virtual machine does not exist.
	SkippedNoMachine = "MachineNotFound"
)

// ScheduledRun is one run of a schedule, or several one after the other for which no backup was made for the same
// reason.
type ScheduledRun struct {
	// time is when the run was due.
	Time metav1.Time `json:"time"`
	// lastTime is when the last one of several was due.
	// +optional
	LastTime *metav1.Time `json:"lastTime,omitempty"`
	// count is how many runs this is, if they are several.
	// +optional
	Count int `json:"count,omitempty"`
	// result is Started, Succeeded, Retrying, Failed, Deleted, Skipped or Missed.
	Result RunResult `json:"result"`
	// reason is Overlap, Suspended or MachineNotFound for runs that were skipped, and Requested for one that
	// varvebackup.io/run-at asked for.
	// +optional
	Reason string `json:"reason,omitempty"`
	// message says why the backup failed, or was not made.
	// +optional
	Message string `json:"message,omitempty"`
	// backup is the name of the VirtualMachineBackup: of the latest attempt, if there were several.
	// +optional
	Backup string `json:"backup,omitempty"`
	// attempts is how many backups were made for the run, if they are several.
	// +optional
	Attempts int `json:"attempts,omitempty"`
	// retryTime is when another backup is made for the run, or was made.
	// +optional
	// +nullable
	RetryTime *metav1.Time `json:"retryTime,omitempty"`
}

// VMBackupInfo is a backup that a schedule made.
type VMBackupInfo struct {
	// name is the VirtualMachineBackup's name.
	Name string `json:"name"`
	// volumeBackupInfo has the disks.
	// +optional
	// +listType=atomic
	VolumeBackupInfo []VolumeBackupInfo `json:"volumeBackupInfo,omitempty"`
	// readyToUse is true if the backup can be restored.
	// +optional
	ReadyToUse *bool `json:"readyToUse,omitempty"`
	// error says why the backup failed.
	// +optional
	Error *Error `json:"error,omitempty"`
}

// VolumeBackupInfo is a disk in a backup that a schedule made.
type VolumeBackupInfo struct {
	// name is the name of the disk in the backup.
	// +optional
	Name *string `json:"name,omitempty"`
	// readyToUse is true if the disk can be restored.
	// +optional
	ReadyToUse *bool `json:"readyToUse,omitempty"`
	// error says why the disk could not be stored.
	// +optional
	Error *Error `json:"error,omitempty"`
}
