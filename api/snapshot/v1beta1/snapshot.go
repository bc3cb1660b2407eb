package v1beta1

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// DefaultFailureDeadline is how long a snapshot may take if failureDeadline is not set.
const DefaultFailureDeadline = 5 * time.Minute

// AnnotationFreezeDeadline is on a VirtualMachineSnapshot: how long its guest may be frozen, such as "5s". 0s, and what is
// longer than 30 s, is 30 s. "false" is for a guest that is not to be frozen. KubeVirt does not know it.
const AnnotationFreezeDeadline = "varvebackup.io/freeze-deadline"

// AnnotationExcludeVolumes is on a VirtualMachineSnapshot: the names of volumes that are left out, separated by commas.
// KubeVirt does not know it, and leaves none out that its storage can make a snapshot of.
const AnnotationExcludeVolumes = "varvebackup.io/exclude-volumes"

// VirtualMachineSnapshot is a set of snapshots that the storage has of the disks of a virtual machine.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=vmsnapshot;vmsnapshots,categories=all
// +kubebuilder:metadata:labels="app.kubernetes.io/part-of=varve"
// +kubebuilder:subresource:status
// +kubebuilder:selectablefield:JSONPath=`.status.nodeName`
// +kubebuilder:printcolumn:name="SourceKind",type=string,JSONPath=`.spec.source.kind`
// +kubebuilder:printcolumn:name="SourceName",type=string,JSONPath=`.spec.source.name`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="ReadyToUse",type=boolean,JSONPath=`.status.readyToUse`
// +kubebuilder:printcolumn:name="CreationTime",type=date,JSONPath=`.status.creationTime`
// +kubebuilder:printcolumn:name="Error",type=string,JSONPath=`.status.error.message`
type VirtualMachineSnapshot struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec VirtualMachineSnapshotSpec `json:"spec"`
	// +optional
	Status *VirtualMachineSnapshotStatus `json:"status,omitempty"`
}

// VirtualMachineSnapshotList is a list of VirtualMachineSnapshots.
//
// +kubebuilder:object:root=true
type VirtualMachineSnapshotList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []VirtualMachineSnapshot `json:"items"`
}

// DeletionPolicy says what a deleted VirtualMachineSnapshot leaves.
//
// +kubebuilder:validation:Enum=Delete;Retain
type DeletionPolicy string

const (
	// DeleteContent: the content and the storage's snapshots go with it.
	DeleteContent DeletionPolicy = "Delete"
	// RetainContent: they stay.
	RetainContent DeletionPolicy = "Retain"
)

// VirtualMachineSnapshotSpec says of which machine the snapshot is.
//
// +kubebuilder:validation:XValidation:rule="self.source == oldSelf.source",message="source is immutable: create another snapshot",fieldPath=".source"
type VirtualMachineSnapshotSpec struct {
	// source is the VirtualMachine (kubevirt.io), in the snapshot's namespace.
	// +kubebuilder:validation:XValidation:rule="has(self.apiGroup) && self.apiGroup == 'kubevirt.io'",message="apiGroup must be kubevirt.io",fieldPath=".apiGroup"
	// +kubebuilder:validation:XValidation:rule="self.kind == 'VirtualMachine'",message="kind must be VirtualMachine",fieldPath=".kind"
	// +kubebuilder:validation:XValidation:rule="size(self.name) > 0",message="name is required",fieldPath=".name"
	Source corev1.TypedLocalObjectReference `json:"source"`
	// deletionPolicy is Delete or Retain: what happens to the content and the storage's snapshots when this object is
	// deleted. Default: Delete.
	// +optional
	DeletionPolicy *DeletionPolicy `json:"deletionPolicy,omitempty"`
	// failureDeadline is how long the snapshot may take, such as "5m", which is the default. Then it has failed.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="duration(self) > duration('0s')",message="must be a positive duration, such as 5m"
	FailureDeadline *metav1.Duration `json:"failureDeadline,omitempty"`
}

// Indication says something about the machine at the snapshot's moment.
type Indication string

const (
	// Online: the guest ran.
	Online Indication = "Online"
	// NoGuestAgent: the guest ran, and its file systems were not frozen.
	NoGuestAgent Indication = "NoGuestAgent"
	// GuestAgent: the guest's file systems were frozen.
	GuestAgent Indication = "GuestAgent"
	// QuiesceTimeout: the guest's file systems were frozen, and thawed before the storage had all snapshots.
	QuiesceTimeout Indication = "QuiesceTimeout"
	// Paused: the guest was paused.
	Paused Indication = "Paused"
)

// SourceIndication is an indication and what it means.
type SourceIndication struct {
	// indication is Online, NoGuestAgent, GuestAgent, QuiesceTimeout or Paused.
	Indication Indication `json:"indication"`
	// message says what that means for the snapshot.
	Message string `json:"message"`
}

// Phase sums up the state of a snapshot.
type Phase string

const (
	// InProgress: the snapshot is being made.
	InProgress Phase = "InProgress"
	// Succeeded: the snapshot can be used.
	Succeeded Phase = "Succeeded"
	// Failed: the snapshot could not be taken; error says why.
	Failed Phase = "Failed"
	// Deleting: the snapshot is being deleted.
	Deleting Phase = "Deleting"
)

// VirtualMachineSnapshotStatus says how far the snapshot is.
type VirtualMachineSnapshotStatus struct {
	// sourceUID is the machine's UID.
	// +optional
	SourceUID *types.UID `json:"sourceUID,omitempty"`
	// virtualMachineSnapshotContentName is the content, which has the machine and the storage's snapshots.
	// +optional
	VirtualMachineSnapshotContentName *string `json:"virtualMachineSnapshotContentName,omitempty"`
	// creationTime is when the last of the storage's snapshots was taken.
	// +optional
	// +nullable
	CreationTime *metav1.Time `json:"creationTime,omitempty"`
	// phase sums up the state: InProgress, Succeeded, Failed or Deleting.
	// +optional
	Phase Phase `json:"phase,omitempty"`
	// readyToUse is true when all of the storage's snapshots can be used.
	// +optional
	ReadyToUse *bool `json:"readyToUse,omitempty"`
	// error says why the snapshot failed.
	// +optional
	Error *Error `json:"error,omitempty"`
	// conditions are Ready, Progressing and Failure.
	// +optional
	// +listType=atomic
	Conditions []Condition `json:"conditions,omitempty"`
	// indications are those of sourceIndications.
	// +optional
	// +listType=set
	Indications []Indication `json:"indications,omitempty"`
	// sourceIndications say how consistent the snapshot is.
	// +optional
	// +listType=atomic
	SourceIndications []SourceIndication `json:"sourceIndications,omitempty"`
	// snapshotVolumes has the volumes of the machine that are in the snapshot, and those that are not.
	// +optional
	SnapshotVolumes *SnapshotVolumesLists `json:"snapshotVolumes,omitempty"`
	// instanceUID is the UID of the VirtualMachineInstance that ran when the snapshot began. It is empty if none did.
	// +optional
	InstanceUID types.UID `json:"instanceUID,omitempty"`
	// nodeName is the node whose handler freezes and thaws the guest. It is empty if nothing is to be frozen, or when
	// the freeze is over.
	// +optional
	NodeName string `json:"nodeName,omitempty"`
	// quiesce is how the freeze of the guest goes. It is absent if the guest is not frozen.
	// +optional
	Quiesce *Quiesce `json:"quiesce,omitempty"`
}

// QuiesceRequest says what the handler is to do.
//
// +kubebuilder:validation:Enum=Freeze;Thaw
type QuiesceRequest string

const (
	// FreezeRequest: freeze the guest's file systems.
	FreezeRequest QuiesceRequest = "Freeze"
	// ThawRequest: thaw them.
	ThawRequest QuiesceRequest = "Thaw"
)

// QuiesceState is what the handler has done.
type QuiesceState string

const (
	// Frozen: the guest's file systems are frozen.
	Frozen QuiesceState = "Frozen"
	// NotFrozen: they were not frozen; message says why.
	NotFrozen QuiesceState = "NotFrozen"
	// Thawed: they were frozen until they were thawed as requested.
	Thawed QuiesceState = "Thawed"
	// ThawedEarly: they may have been thawed before that was requested; message says why.
	ThawedEarly QuiesceState = "ThawedEarly"
)

// Quiesce is the freeze of a guest for a snapshot.
type Quiesce struct {
	// request is Freeze or Thaw. The controller writes it.
	Request QuiesceRequest `json:"request"`
	// requestTime is when it did.
	// +optional
	RequestTime *metav1.Time `json:"requestTime,omitempty"`
	// state is Frozen, NotFrozen, Thawed or ThawedEarly. The handler of the guest's node writes it.
	// +optional
	State QuiesceState `json:"state,omitempty"`
	// message says why the guest was not frozen, or thawed too early.
	// +optional
	Message string `json:"message,omitempty"`
}

// SnapshotVolumesLists has the names of volumes.
type SnapshotVolumesLists struct {
	// includedVolumes are in the snapshot.
	// +optional
	// +listType=set
	IncludedVolumes []string `json:"includedVolumes,omitempty"`
	// excludedVolumes are not: the storage cannot make snapshots of them, or they are on no claim.
	// +optional
	// +listType=set
	ExcludedVolumes []string `json:"excludedVolumes,omitempty"`
}

// Error is the last failure.
type Error struct {
	// time is when it was seen.
	// +optional
	Time *metav1.Time `json:"time,omitempty"`
	// message says what failed, and what to do.
	// +optional
	Message *string `json:"message,omitempty"`
}

// ConditionType names a condition.
type ConditionType string

const (
	// ConditionReady is True when the snapshot can be used.
	ConditionReady ConditionType = "Ready"
	// ConditionProgressing is True while the snapshot is being made.
	ConditionProgressing ConditionType = "Progressing"
	// ConditionFailure is True after a failure.
	ConditionFailure ConditionType = "Failure"
)

// Condition is a condition.
type Condition struct {
	// type is Ready, Progressing or Failure.
	Type ConditionType `json:"type"`
	// status is True, False or Unknown.
	Status corev1.ConditionStatus `json:"status"`
	// lastProbeTime is when it was looked at.
	// +optional
	// +nullable
	LastProbeTime metav1.Time `json:"lastProbeTime,omitempty"`
	// lastTransitionTime is when the status changed.
	// +optional
	// +nullable
	LastTransitionTime metav1.Time `json:"lastTransitionTime,omitempty"`
	// reason is a word for the state.
	// +optional
	Reason string `json:"reason,omitempty"`
	// message says what is being done, what it waits for, or why it failed.
	// +optional
	Message string `json:"message,omitempty"`
}

// IsReady says whether the snapshot can be used.
func (s *VirtualMachineSnapshot) IsReady() bool {
	return s.Status != nil && s.Status.ReadyToUse != nil && *s.Status.ReadyToUse
}

// HasFailed says whether the snapshot has ended without being ready.
func (s *VirtualMachineSnapshot) HasFailed() bool {
	return s.Status != nil && s.Status.Phase == Failed
}
