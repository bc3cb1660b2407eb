package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// LabelPolicy is on a ScheduleVMBackup that a policy made: the UID of the policy. A schedule without it is never
	// changed for a policy.
	LabelPolicy = "varvebackup.io/backup-policy"
	// AnnotationPolicySuspend is on a ScheduleVMBackup that a policy made: the value of template.spec.suspend that was
	// written to it last. The policy writes spec.suspend only when the template has another value than this.
	AnnotationPolicySuspend = "varvebackup.io/policy-suspend"
	// AnnotationPolicyAnnotations is on a ScheduleVMBackup that a policy made: the annotations that the policy wrote,
	// separated by commas. The policy removes them when they are not in the template any more.
	AnnotationPolicyAnnotations = "varvebackup.io/policy-annotations"
)

// KindPolicy is the kind BackupPolicy.
const KindPolicy = "BackupPolicy"

// ConditionReady is the condition of a policy that is True if each machine that it selects has its schedule.
const ConditionReady = "Ready"

// Reasons of the condition Ready, and of a machine that has no schedule.
const (
	// ReasonScheduled: each machine has its schedule.
	ReasonScheduled = "Scheduled"
	// ReasonInvalidSelector: the selector cannot be read. The schedules stay as they are.
	ReasonInvalidSelector = "InvalidSelector"
	// ReasonSelectsNothing: since the policy was changed it selects no machine, and there are schedules of machines that
	// exist. They stay as they are.
	ReasonSelectsNothing = "SelectsNothing"
	// ReasonInvalidTemplate: no schedule can be made from the template. The schedules stay as they are.
	ReasonInvalidTemplate = "InvalidTemplate"
	// ReasonNameTaken: a ScheduleVMBackup of the name is there, and is not the policy's.
	ReasonNameTaken = "NameTaken"
	// ReasonRefused: the API server does not accept the schedule of a machine, for which a quota is the usual reason.
	ReasonRefused = "Refused"
)

// MaxFailed is how many machines status.failed has at most.
const MaxFailed = 20

// BackupPolicy gives each virtual machine of its namespace that has certain labels a ScheduleVMBackup of its own, also
// a machine that is made or labelled later. The schedule of a machine that does not have the labels any more is
// deleted. Its backups stay.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=vbp,categories=all
// +kubebuilder:metadata:labels="app.kubernetes.io/part-of=varve"
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="CRON",type=string,JSONPath=`.spec.template.spec.cron`
// +kubebuilder:printcolumn:name="RETAIN",type=integer,JSONPath=`.spec.template.spec.retain`
// +kubebuilder:printcolumn:name="MACHINES",type=integer,JSONPath=`.status.machines`
// +kubebuilder:printcolumn:name="READY",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="SELECTOR",type=string,JSONPath=`.spec.selector.matchLabels`,priority=1
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="metadata.name must be at most 63 characters: the schedules of machines are named after it"
type BackupPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec BackupPolicySpec `json:"spec"`
	// +optional
	Status BackupPolicyStatus `json:"status,omitempty"`
}

// BackupPolicyList is a list of BackupPolicies.
//
// +kubebuilder:object:root=true
type BackupPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []BackupPolicy `json:"items"`
}

// BackupPolicySpec says which machines have a schedule, and which one.
type BackupPolicySpec struct {
	// selector selects the virtual machines by the labels of their VirtualMachine objects. An empty one selects all
	// machines of the namespace.
	Selector metav1.LabelSelector `json:"selector"`
	// template is what the schedules are made from. A change goes to all schedules.
	Template ScheduleTemplate `json:"template"`
}

// ScheduleTemplate is what a ScheduleVMBackup is made from.
type ScheduleTemplate struct {
	// annotations are those of a ScheduleVMBackup: their names begin with varvebackup.io/, or are
	// harvesterhci.io/svmbackupSkipCronCheck and harvesterhci.io/snapshotFreezeFS. Without varvebackup.io/jitter, it is
	// 30m, or the time between two runs if that is shorter. Without varvebackup.io/adopt-backups, it is "true".
	// +kubebuilder:validation:MaxProperties=32
	// +kubebuilder:validation:XValidation:rule="self.all(k, k.startsWith('varvebackup.io/') || k in ['harvesterhci.io/svmbackupSkipCronCheck', 'harvesterhci.io/snapshotFreezeFS'])",message="annotations must be those of a ScheduleVMBackup: varvebackup.io/..., harvesterhci.io/svmbackupSkipCronCheck or harvesterhci.io/snapshotFreezeFS"
	// +kubebuilder:validation:XValidation:rule="self.all(k, !k.startsWith('varvebackup.io/policy-'))",message="the annotations varvebackup.io/policy-... are the controller's: leave them out"
	// +kubebuilder:validation:XValidation:rule="!('varvebackup.io/run-at' in self)",message="varvebackup.io/run-at is for one schedule: set it there"
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
	// spec is that of the schedules, without the machine.
	Spec ScheduleTemplateSpec `json:"spec"`
}

// ScheduleTemplateSpec is the spec of a ScheduleVMBackup without the machine.
//
// +kubebuilder:validation:XValidation:rule="self.maxFailure < self.retain",message="maxFailure must be less than retain",fieldPath=".maxFailure"
// +kubebuilder:validation:XValidation:rule="!has(self.fsFreezeDeadline) || self.type == 'snapshot'",message="fsFreezeDeadline is for type snapshot",fieldPath=".fsFreezeDeadline"
type ScheduleTemplateSpec struct {
	// cron gives the times, as in a ScheduleVMBackup. Two due times are an hour apart or more, unless the template has
	// the annotation harvesterhci.io/svmbackupSkipCronCheck: enable.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Cron string `json:"cron"`
	// retain is how many backups of each machine stay.
	// +kubebuilder:default=8
	// +kubebuilder:validation:Minimum=2
	// +kubebuilder:validation:Maximum=250
	// +optional
	Retain int `json:"retain,omitempty"`
	// maxFailure is how many backups of a machine may fail one after the other before its schedule is suspended. It is
	// less than retain.
	// +kubebuilder:default=4
	// +kubebuilder:validation:Minimum=2
	// +optional
	MaxFailure int `json:"maxFailure,omitempty"`
	// suspend is true while no backups are to be made. A change suspends or resumes all schedules. Otherwise each
	// schedule is suspended and resumed for itself.
	// +kubebuilder:default=false
	// +optional
	Suspend bool `json:"suspend,omitempty"`
	// type is backup or snapshot, as in a ScheduleVMBackup. After a change, schedules are deleted and made again. The
	// backups of the old type stay, and no schedule removes them.
	// +kubebuilder:validation:Enum=backup;snapshot
	// +kubebuilder:default=backup
	// +optional
	Type string `json:"type,omitempty"`
	// fsFreezeDeadline is how long the guest's file systems may be frozen for a snapshot, such as "5s". After a change,
	// schedules are deleted and made again.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="must not be negative"
	// +optional
	FSFreezeDeadline *metav1.Duration `json:"fsFreezeDeadline,omitempty"`
}

// BackupPolicyStatus says how many schedules there are, and which machines have none.
type BackupPolicyStatus struct {
	// observedGeneration is the generation of the policy that the status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// machines is how many machines have a schedule of this policy.
	// +optional
	Machines int32 `json:"machines"`
	// failed are machines that have no schedule, or an old one, by name: the first 20.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=20
	Failed []FailedMachine `json:"failed,omitempty"`
	// conditions are Ready, which is False if the policy cannot be carried out, or if a machine has no schedule. Its
	// reason is Scheduled, InvalidSelector, InvalidTemplate, NameTaken or Refused.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// FailedMachine is a machine whose schedule is not as the policy wants it.
type FailedMachine struct {
	// name is the virtual machine.
	Name string `json:"name"`
	// reason is NameTaken or Refused.
	Reason string `json:"reason"`
	// message says what is in the way, and what to do.
	// +optional
	Message string `json:"message,omitempty"`
}
