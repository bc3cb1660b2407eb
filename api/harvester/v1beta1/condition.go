package v1beta1

import corev1 "k8s.io/api/core/v1"

// ConditionType names a condition of a VirtualMachineBackup, a VirtualMachineRestore or a ScheduleVMBackup.
type ConditionType string

const (
	// ConditionReady is True when the backup can be restored, or when the restored machine is there.
	ConditionReady ConditionType = "Ready"
	// ConditionProgressing is True while something is being done. When it is over, it is False, with the reason Error
	// after a failure.
	ConditionProgressing ConditionType = "InProgress"
	// ConditionMetadataReady is True on a backup when the definition of its machine is stored.
	ConditionMetadataReady ConditionType = "MetadataReady"
	// ConditionBackupSuspend is True on a schedule that is suspended, and says why.
	ConditionBackupSuspend ConditionType = "BackupSuspend"
)

// Reasons of BackupSuspend, as Harvester has them.
const (
	// ReasonMaxFailure: maxFailure backups have failed one after the other.
	ReasonMaxFailure = "Reach Max Failure"
	// ReasonSuspended: spec.suspend is true.
	ReasonSuspended = "Proactive Schedule Suspend"
)

// ReasonError is the reason of the conditions Ready and InProgress after a failure.
const ReasonError = "Error"

// Condition is a condition as Harvester has it: the times are texts.
type Condition struct {
	// type is Ready, InProgress, MetadataReady or BackupSuspend.
	Type ConditionType `json:"type"`
	// status is True, False or Unknown.
	Status corev1.ConditionStatus `json:"status"`
	// lastUpdateTime is when the condition was written, RFC 3339.
	// +optional
	LastUpdateTime string `json:"lastUpdateTime,omitempty"`
	// lastTransitionTime is when the status changed, RFC 3339.
	// +optional
	LastTransitionTime string `json:"lastTransitionTime,omitempty"`
	// reason is Error after a failure.
	// +optional
	Reason string `json:"reason,omitempty"`
	// message says what is being done, what it waits for, or why it failed and what to do.
	// +optional
	Message string `json:"message,omitempty"`
}
