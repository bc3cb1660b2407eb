package v1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// VirtualMachine keeps a VirtualMachineInstance as spec.runStrategy says.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=vm;vms,categories=all
// +kubebuilder:metadata:labels="app.kubernetes.io/part-of=varve"
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.printableStatus`
// +kubebuilder:printcolumn:name="Ready",type=boolean,JSONPath=`.status.ready`
// +kubebuilder:printcolumn:name="CBT",type=string,JSONPath=`.status.changedBlockTracking.state`,description="State of changed block tracking"
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="metadata.name must be at most 63 characters: it is the value of a label"
type VirtualMachine struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec VirtualMachineSpec `json:"spec"`
	// +optional
	Status VirtualMachineStatus `json:"status,omitempty"`
}

// VirtualMachineList is a list of VirtualMachines.
//
// +kubebuilder:object:root=true
type VirtualMachineList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []VirtualMachine `json:"items"`
}

// RunStrategy says when a VirtualMachine's instance runs.
//
// +kubebuilder:validation:Enum=Always;Halted;Manual;RerunOnFailure
type RunStrategy string

const (
	// RunStrategyAlways keeps an instance running, whatever ended the last one.
	RunStrategyAlways RunStrategy = "Always"
	// RunStrategyHalted keeps no instance.
	RunStrategyHalted RunStrategy = "Halted"
	// RunStrategyManual starts and stops only on request.
	RunStrategyManual RunStrategy = "Manual"
	// RunStrategyRerunOnFailure starts an instance and replaces it only when it failed.
	RunStrategyRerunOnFailure RunStrategy = "RerunOnFailure"
)

// VirtualMachineSpec is the desired state of a VirtualMachine.
//
// +kubebuilder:validation:XValidation:rule="!has(self.running) || !has(self.runStrategy)",message="set at most one of running and runStrategy: running true means runStrategy Always, false means Halted",fieldPath=".running"
type VirtualMachineSpec struct {
	// running is the older form of runStrategy: true means Always, and false means Halted. Set at most one of the two.
	// +optional
	Running *bool `json:"running,omitempty"`

	// runStrategy says when the instance runs: Always, Halted, Manual or RerunOnFailure. If neither runStrategy nor running is set,
	// the machine is Halted.
	// +optional
	RunStrategy *RunStrategy `json:"runStrategy,omitempty"`

	// template describes the instance that is created. A change takes effect at the next start.
	// +kubebuilder:validation:XValidation:rule="!has(self.spec.utilityVolumes) || size(self.spec.utilityVolumes) == 0",message="utilityVolumes are attached to a running VirtualMachineInstance by Varve's controllers; remove the field from the template",fieldPath=".spec.utilityVolumes"
	Template *VirtualMachineInstanceTemplateSpec `json:"template"`
}

// Strategy is the run strategy that running or runStrategy asks for.
func (s *VirtualMachineSpec) Strategy() RunStrategy {
	switch {
	case s.RunStrategy != nil:
		return *s.RunStrategy
	case s.Running != nil && *s.Running:
		return RunStrategyAlways
	default:
		return RunStrategyHalted
	}
}

// SetStrategy writes a run strategy to the field that the spec already uses, so that a client that applies its own fields again
// does not set both. Only Always and Halted can be written to running.
func (s *VirtualMachineSpec) SetStrategy(strategy RunStrategy) {
	fitsRunning := strategy == RunStrategyAlways || strategy == RunStrategyHalted
	if s.Running != nil && s.RunStrategy == nil && fitsRunning {
		running := strategy == RunStrategyAlways
		s.Running = &running
		return
	}
	s.Running, s.RunStrategy = nil, &strategy
}

// VirtualMachineInstanceTemplateSpec describes the instance that a VirtualMachine creates.
type VirtualMachineInstanceTemplateSpec struct {
	// metadata holds the labels and annotations that the instance gets.
	// +kubebuilder:pruning:PreserveUnknownFields
	// +nullable
	// +optional
	ObjectMeta TemplateMetadata `json:"metadata,omitempty"`
	// spec is the instance's spec.
	Spec VirtualMachineInstanceSpec `json:"spec,omitempty"`
}

// TemplateMetadata is what Varve reads of a template's metadata. Other fields stay as they are written.
type TemplateMetadata struct {
	// labels are those of the instance.
	// +nullable
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
	// annotations are those of the instance.
	// +nullable
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
}

// PrintableStatus is a VirtualMachine's state in one word.
type PrintableStatus string

// Values of PrintableStatus.
const (
	VirtualMachineStopped                 PrintableStatus = "Stopped"
	VirtualMachineStarting                PrintableStatus = "Starting"
	VirtualMachineRunning                 PrintableStatus = "Running"
	VirtualMachinePaused                  PrintableStatus = "Paused"
	VirtualMachineStopping                PrintableStatus = "Stopping"
	VirtualMachineTerminating             PrintableStatus = "Terminating"
	VirtualMachineCrashLoopBackOff        PrintableStatus = "CrashLoopBackOff"
	VirtualMachineUnschedulable           PrintableStatus = "ErrorUnschedulable"
	VirtualMachineErrImagePull            PrintableStatus = "ErrImagePull"
	VirtualMachinePvcNotFound             PrintableStatus = "ErrorPvcNotFound"
	VirtualMachineWaitingForVolumeBinding PrintableStatus = "WaitingForVolumeBinding"
)

// StateChangeRequestAction is what a state change request asks for.
//
// +kubebuilder:validation:Enum=Start;Stop
type StateChangeRequestAction string

const (
	// StartRequest asks for a new instance.
	StartRequest StateChangeRequestAction = "Start"
	// StopRequest asks to stop the instance that the request's uid names.
	StopRequest StateChangeRequestAction = "Stop"
)

// StateChangeRequest asks once for a start or a stop. The controller removes it when it has acted.
type StateChangeRequest struct {
	// action is Start or Stop.
	Action StateChangeRequestAction `json:"action"`
	// uid is the instance that a Stop applies to. The controller drops a Stop for another instance.
	// +optional
	UID *types.UID `json:"uid,omitempty"`
}

// VirtualMachineStatus is the observed state of a VirtualMachine.
type VirtualMachineStatus struct {
	// created says that an instance object exists.
	// +optional
	Created bool `json:"created,omitempty"`
	// ready says that the guest runs.
	// +optional
	Ready bool `json:"ready,omitempty"`
	// printableStatus is the state in one word: Stopped, Starting, Running, Paused, Stopping, Terminating, CrashLoopBackOff,
	// ErrorUnschedulable, ErrImagePull, ErrorPvcNotFound or WaitingForVolumeBinding.
	// +kubebuilder:default=Stopped
	// +optional
	PrintableStatus PrintableStatus `json:"printableStatus,omitempty"`
	// conditions mirrors the instance's conditions and adds the machine's own.
	// +optional
	// +listType=atomic
	Conditions []Condition `json:"conditions,omitempty"`
	// stateChangeRequests are the starts and stops that the controller has not acted on yet: at most a Stop followed by a
	// Start.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=2
	StateChangeRequests []StateChangeRequest `json:"stateChangeRequests,omitempty"`
	// runStrategy is the strategy that the controller last acted on. It notices a change to RerunOnFailure by it, which starts
	// the machine once.
	// +optional
	RunStrategy RunStrategy `json:"runStrategy,omitempty"`
	// startFailure counts the instances that failed in a row, and says how long to wait before the next one.
	// +optional
	// +nullable
	StartFailure *StartFailure `json:"startFailure,omitempty"`
	// changedBlockTracking is the state of changed block tracking.
	// +optional
	// +nullable
	ChangedBlockTracking *ChangedBlockTrackingStatus `json:"changedBlockTracking,omitempty"`
}

// StartFailure counts failed instances in a row.
type StartFailure struct {
	// consecutiveFailCount is the number of instances that failed in a row.
	// +optional
	ConsecutiveFailCount int `json:"consecutiveFailCount,omitempty"`
	// lastFailedVMIUID is the last instance that was counted.
	// +optional
	LastFailedVMIUID types.UID `json:"lastFailedVMIUID,omitempty"`
	// retryAfterTimestamp is when the next instance may be created.
	// +optional
	RetryAfterTimestamp *metav1.Time `json:"retryAfterTimestamp,omitempty"`
}

// Condition is one aspect of a VirtualMachine's or a VirtualMachineInstance's state. It is KubeVirt's
// shape, not metav1.Condition: lastProbeTime exists and observedGeneration does not.
type Condition struct {
	// type names the condition: Ready, Paused, AgentConnected, LiveMigratable, PodScheduled, Failure,
	// RestartRequired, Synchronized, varvebackup.io/StopDelayed, varvebackup.io/MigrationOutcomeUnknown or
	// varvebackup.io/DiskNotTracked.
	Type ConditionType `json:"type"`
	// status is True, False or Unknown.
	Status corev1.ConditionStatus `json:"status"`
	// lastProbeTime is when the condition was last checked.
	// +nullable
	// +optional
	LastProbeTime metav1.Time `json:"lastProbeTime,omitempty"`
	// lastTransitionTime is when status last changed.
	// +nullable
	// +optional
	LastTransitionTime metav1.Time `json:"lastTransitionTime,omitempty"`
	// reason says in one CamelCase word why the condition has its status.
	// +optional
	Reason string `json:"reason,omitempty"`
	// message says the same in a sentence, and what to do.
	// +optional
	Message string `json:"message,omitempty"`
}

// ConditionType names a condition of a VirtualMachine or a VirtualMachineInstance.
type ConditionType string

const (
	// ConditionReady is True while the guest runs and its pod is ready.
	ConditionReady ConditionType = "Ready"
	// ConditionPaused is True while the guest is paused.
	ConditionPaused ConditionType = "Paused"
	// ConditionAgentConnected is True while the guest agent answers.
	ConditionAgentConnected ConditionType = "AgentConnected"
	// ConditionLiveMigratable is False with a reason while the guest cannot be moved.
	ConditionLiveMigratable ConditionType = "LiveMigratable"
	// ConditionPodScheduled is False with a reason while the launcher pod has no node.
	ConditionPodScheduled ConditionType = "PodScheduled"
	// ConditionFailure is True on a machine while its instance cannot be created, and with the instance's reason from an instance that
	// failed before its guest ran until a guest runs.
	ConditionFailure ConditionType = "Failure"
	// ConditionRestartRequired is True on a machine whose template was changed while its instance runs: the message names the fields
	// that its next instance will have otherwise.
	ConditionRestartRequired ConditionType = "RestartRequired"
	// ConditionSynchronized is False with a reason while the guest cannot be made to match its spec. The controller writes it
	// before the phase Scheduled (a claim or an image is missing), and the node writes it after that.
	ConditionSynchronized ConditionType = "Synchronized"
	// ConditionStopDelayed is True while a requested stop waits for a running backup.
	ConditionStopDelayed ConditionType = "varvebackup.io/StopDelayed"
	// ConditionMigrationOutcomeUnknown is True after the source pod of a migration has ended, until a handler says where
	// the guest is; the message says how long the controller waits.
	ConditionMigrationOutcomeUnknown ConditionType = "varvebackup.io/MigrationOutcomeUnknown"
	// ConditionDiskNotTracked is True while a disk that should be tracked is not, and is therefore in no backup; the message says why.
	ConditionDiskNotTracked ConditionType = "varvebackup.io/DiskNotTracked"
)

// ChangedBlockTrackingState is the state of changed block tracking (VEP 25, Enable/Disable QEMU backup).
type ChangedBlockTrackingState string

const (
	// ChangedBlockTrackingPendingRestart: the wanted state differs from that of the running guest; restart the machine.
	ChangedBlockTrackingPendingRestart ChangedBlockTrackingState = "PendingRestart"
	// ChangedBlockTrackingInitializing: the overlays are being created.
	ChangedBlockTrackingInitializing ChangedBlockTrackingState = "Initializing"
	// ChangedBlockTrackingEnabled: every eligible disk is tracked.
	ChangedBlockTrackingEnabled ChangedBlockTrackingState = "Enabled"
	// ChangedBlockTrackingDisabled: tracking was on and is off now; its overlays are deleted.
	ChangedBlockTrackingDisabled ChangedBlockTrackingState = "Disabled"
	// ChangedBlockTrackingFGDisabled: tracking is on and feature gate IncrementalBackup is off. A running guest is still
	// tracked; its overlays are deleted if it restarts while the gate is off.
	ChangedBlockTrackingFGDisabled ChangedBlockTrackingState = "IncrementalBackupFeatureGateDisabled"
)

// ChangedBlockTrackingStatus is the state of changed block tracking and the backup that holds the machine.
type ChangedBlockTrackingStatus struct {
	// state is PendingRestart, Initializing, Enabled, Disabled or IncrementalBackupFeatureGateDisabled.
	State ChangedBlockTrackingState `json:"state"`
	// backupStatus names the one backup that holds the instance. It is set before the backup touches the guest, and removed after
	// the backup has cleaned up.
	// +optional
	// +nullable
	BackupStatus *InstanceBackupStatus `json:"backupStatus,omitempty"`
}

// InstanceBackupStatus is the lock that a backup holds on an instance.
type InstanceBackupStatus struct {
	// backupName is the VirtualMachineBackup that holds the instance.
	// +optional
	BackupName string `json:"backupName,omitempty"`
	// startTimestamp is when the lock was taken.
	// +optional
	StartTimestamp *metav1.Time `json:"startTimestamp,omitempty"`
	// backupMsg has the backup's UID, which tells it from a backup that is created later under the same name.
	// +optional
	BackupMsg *string `json:"backupMsg,omitempty"`
	// checkpointName is the checkpoint that the backup creates.
	// +optional
	CheckpointName *string `json:"checkpointName,omitempty"`
}
