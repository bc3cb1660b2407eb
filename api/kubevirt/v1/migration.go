package v1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// VirtualMachineInstanceMigration moves a running guest to another node. To abort it, delete it.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=vmim;vmims,categories=all
// +kubebuilder:metadata:labels="app.kubernetes.io/part-of=varve"
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="VMI",type=string,JSONPath=`.spec.vmiName`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type VirtualMachineInstanceMigration struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is immutable.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="spec is immutable: create another migration"
	Spec VirtualMachineInstanceMigrationSpec `json:"spec"`
	// +optional
	Status VirtualMachineInstanceMigrationStatus `json:"status,omitempty"`
}

// VirtualMachineInstanceMigrationList is a list of VirtualMachineInstanceMigrations.
//
// +kubebuilder:object:root=true
type VirtualMachineInstanceMigrationList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []VirtualMachineInstanceMigration `json:"items"`
}

// VirtualMachineInstanceMigrationSpec says which guest to move and where to.
//
// +kubebuilder:validation:XValidation:rule="has(self.vmiName) && size(self.vmiName) > 0",message="vmiName is required: the name of the running VirtualMachineInstance to move",fieldPath=".vmiName"
type VirtualMachineInstanceMigrationSpec struct {
	// vmiName is the name of the instance to move, in the migration's namespace.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	VMIName string `json:"vmiName,omitempty"`
	// addedNodeSelector restricts the nodes that the guest may move to, in addition to the instance's own
	// nodeSelector. Where both have a key, the instance's value counts.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	AddedNodeSelector map[string]string `json:"addedNodeSelector,omitempty"`
}

// MigrationPhase is where a migration is.
type MigrationPhase string

const (
	// MigrationPending: the migration was accepted. It waits for utility volumes, a backup or other migrations.
	MigrationPending MigrationPhase = "Pending"
	// MigrationScheduling: the target pod exists and waits for a node.
	MigrationScheduling MigrationPhase = "Scheduling"
	// MigrationScheduled: the target pod runs.
	MigrationScheduled MigrationPhase = "Scheduled"
	// MigrationPreparingTarget: the target node's handler prepares the target pod.
	MigrationPreparingTarget MigrationPhase = "PreparingTarget"
	// MigrationTargetReady: the target pod listens for the guest.
	MigrationTargetReady MigrationPhase = "TargetReady"
	// MigrationRunning: the guest is being moved.
	MigrationRunning MigrationPhase = "Running"
	// MigrationSucceeded: the guest runs on the target node. Final.
	MigrationSucceeded MigrationPhase = "Succeeded"
	// MigrationFailed: the guest stayed on its node. Final.
	MigrationFailed MigrationPhase = "Failed"
)

// Underway says that the migration has its turn: it counts against the limits, and the instance's backups wait for it.
func (p MigrationPhase) Underway() bool { return p != "" && p != MigrationPending && !p.Final() }

// Final says that the phase does not change any more.
func (p MigrationPhase) Final() bool { return p == MigrationSucceeded || p == MigrationFailed }

// VirtualMachineInstanceMigrationStatus is the observed state of a migration. The controller writes it.
type VirtualMachineInstanceMigrationStatus struct {
	// phase is Pending, Scheduling, Scheduled, PreparingTarget, TargetReady, Running, Succeeded or Failed.
	// +optional
	Phase MigrationPhase `json:"phase,omitempty"`
	// conditions are migrationAbortRequested, migrationRejectedByResourceQuota, migrationBlockedByUtilityVolumes,
	// migrationBlockedByBackup, varvebackup.io/MigrationWaiting and varvebackup.io/MigrationFailed.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []MigrationCondition `json:"conditions,omitempty"`
	// phaseTransitionTimestamps records when each phase was entered.
	// +optional
	// +listType=atomic
	PhaseTransitionTimestamps []MigrationPhaseTransitionTimestamp `json:"phaseTransitionTimestamps,omitempty"`
	// migrationState is what the instance's status said about this migration last. It stays when the next migration
	// replaces it there.
	// +optional
	MigrationState *MigrationState `json:"migrationState,omitempty"`
}

// MigrationPhaseTransitionTimestamp says when a phase was entered.
type MigrationPhaseTransitionTimestamp struct {
	// phase is the phase that was entered: Pending, Scheduling, Scheduled, PreparingTarget, TargetReady, Running,
	// Succeeded or Failed.
	Phase MigrationPhase `json:"phase,omitempty"`
	// phaseTransitionTimestamp is when it was entered.
	PhaseTransitionTimestamp metav1.Time `json:"phaseTransitionTimestamp,omitempty"`
}

// MigrationConditionType names a condition of a migration.
type MigrationConditionType string

const (
	// MigrationAbortRequested is True once the migration was deleted, or took too long.
	MigrationAbortRequested MigrationConditionType = "migrationAbortRequested"
	// MigrationRejectedByResourceQuota is True while a ResourceQuota does not admit the target pod.
	MigrationRejectedByResourceQuota MigrationConditionType = "migrationRejectedByResourceQuota"
	// MigrationBlockedByUtilityVolumes is True while the migration waits for utility volumes to detach.
	MigrationBlockedByUtilityVolumes MigrationConditionType = "migrationBlockedByUtilityVolumes"
	// MigrationBlockedByBackup is True while the migration waits for a backup of the instance.
	MigrationBlockedByBackup MigrationConditionType = "migrationBlockedByBackup"
	// MigrationWaiting is True while the migration waits for something else; the message says for what and how long.
	MigrationWaiting MigrationConditionType = "varvebackup.io/MigrationWaiting"
	// MigrationEndedInVain is True on a migration in phase Failed; reason and message say why it failed, and what to
	// do.
	MigrationEndedInVain MigrationConditionType = "varvebackup.io/MigrationFailed"
)

// MigrationCondition is one aspect of a migration's state. It has KubeVirt's shape.
type MigrationCondition struct {
	// type names the condition: migrationAbortRequested, migrationRejectedByResourceQuota,
	// migrationBlockedByUtilityVolumes, migrationBlockedByBackup, varvebackup.io/MigrationWaiting or
	// varvebackup.io/MigrationFailed.
	Type MigrationConditionType `json:"type"`
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

// MigrationMode says how a guest's memory is moved.
type MigrationMode string

// MigrationPreCopy copies memory while the guest runs on the source. It is the only mode.
const MigrationPreCopy MigrationMode = "PreCopy"

// MigrationState is the state of the last migration of an instance. While neither completed nor failed is set, the
// guest is being moved.
type MigrationState struct {
	// startTimestamp is when the target pod ran and the migration began.
	// +optional
	// +nullable
	StartTimestamp *metav1.Time `json:"startTimestamp,omitempty"`
	// endTimestamp is when the migration completed or failed.
	// +optional
	// +nullable
	EndTimestamp *metav1.Time `json:"endTimestamp,omitempty"`
	// targetNodeDomainReadyTimestamp is when the target pod was ready to take the guest.
	// +optional
	TargetNodeDomainReadyTimestamp *metav1.Time `json:"targetNodeDomainReadyTimestamp,omitempty"`
	// targetNodeDomainDetected says that the guest runs in the target pod.
	// +optional
	TargetNodeDomainDetected bool `json:"targetNodeDomainDetected,omitempty"`
	// targetNodeAddress is where the target pod listens for the guest: an address and a port.
	// +optional
	TargetNodeAddress string `json:"targetNodeAddress,omitempty"`
	// targetNode is the node that the guest moves to.
	// +optional
	TargetNode string `json:"targetNode,omitempty"`
	// targetPod is the launcher pod that the guest moves to.
	// +optional
	TargetPod string `json:"targetPod,omitempty"`
	// sourceNode is the node that the guest moves from.
	// +optional
	SourceNode string `json:"sourceNode,omitempty"`
	// sourcePod is the launcher pod that the guest moves from.
	// +optional
	SourcePod string `json:"sourcePod,omitempty"`
	// completed says that the guest runs in the target pod, and that the migration has ended.
	// +optional
	Completed bool `json:"completed,omitempty"`
	// failed says that the guest stayed in the source pod, and that the migration has ended.
	// +optional
	Failed bool `json:"failed,omitempty"`
	// abortRequested asks the source node's handler to cancel the migration.
	// +optional
	AbortRequested bool `json:"abortRequested,omitempty"`
	// failureReason says why the migration failed, and what to do.
	// +optional
	FailureReason string `json:"failureReason,omitempty"`
	// migrationUid is the UID of the VirtualMachineInstanceMigration.
	// +optional
	MigrationUID types.UID `json:"migrationUid,omitempty"`
	// mode is PreCopy.
	// +optional
	Mode MigrationMode `json:"mode,omitempty"`
}

// Ended says that the migration completed or failed. A nil state has ended: the instance was never moved.
func (s *MigrationState) Ended() bool { return s == nil || s.Completed || s.Failed }

// Moved says that the guest is in the target pod for good.
func (s *MigrationState) Moved() bool { return s != nil && s.Completed && !s.Failed }

// MigrationConfiguration limits migrations.
type MigrationConfiguration struct {
	// parallelOutboundMigrationsPerNode is how many guests leave one node at a time. Default: 2.
	// +optional
	// +kubebuilder:validation:Minimum=1
	ParallelOutboundMigrationsPerNode *uint32 `json:"parallelOutboundMigrationsPerNode,omitempty"`
	// parallelMigrationsPerCluster is how many guests move at a time. Default: 5.
	// +optional
	// +kubebuilder:validation:Minimum=1
	ParallelMigrationsPerCluster *uint32 `json:"parallelMigrationsPerCluster,omitempty"`
	// bandwidthPerMigration is how many bytes a second a migration may send. Default: 0, which means no limit.
	// +optional
	BandwidthPerMigration *resource.Quantity `json:"bandwidthPerMigration,omitempty"`
	// completionTimeoutPerGiB is how many seconds a migration may take for each GiB of the guest's memory. Default:
	// 150.
	// +optional
	// +kubebuilder:validation:Minimum=1
	CompletionTimeoutPerGiB *int64 `json:"completionTimeoutPerGiB,omitempty"`
	// progressTimeout is how many seconds a migration may go on without fewer bytes left to move. Default: 150.
	// +optional
	// +kubebuilder:validation:Minimum=1
	ProgressTimeout *int64 `json:"progressTimeout,omitempty"`
	// utilityVolumesTimeout is how many seconds a migration waits for utility volumes to detach before it fails,
	// counted from its creation. Default: 150.
	// +optional
	// +kubebuilder:validation:Minimum=1
	UtilityVolumesTimeout *int64 `json:"utilityVolumesTimeout,omitempty"`
}

// Defaults of MigrationConfiguration. They are KubeVirt's.
const (
	defaultParallelOutboundMigrationsPerNode = 2
	defaultParallelMigrationsPerCluster      = 5
	defaultMigrationTimeout                  = 150
)

// Migrations returns the limits of migrations. It may be nil, and has the defaults then.
func (kv *KubeVirt) Migrations() *MigrationConfiguration {
	return kv.Spec.Configuration.MigrationConfiguration
}

// OutboundPerNode returns how many guests leave one node at a time.
func (c *MigrationConfiguration) OutboundPerNode() int {
	if c == nil || c.ParallelOutboundMigrationsPerNode == nil {
		return defaultParallelOutboundMigrationsPerNode
	}
	return int(*c.ParallelOutboundMigrationsPerNode)
}

// PerCluster returns how many guests move at a time.
func (c *MigrationConfiguration) PerCluster() int {
	if c == nil || c.ParallelMigrationsPerCluster == nil {
		return defaultParallelMigrationsPerCluster
	}
	return int(*c.ParallelMigrationsPerCluster)
}

// Bandwidth returns how many bytes a second a migration may send. 0: no limit.
func (c *MigrationConfiguration) Bandwidth() int64 {
	if c == nil || c.BandwidthPerMigration == nil {
		return 0
	}
	return c.BandwidthPerMigration.Value()
}

// ProgressSeconds returns how many seconds a migration may go on without fewer bytes left to move.
func (c *MigrationConfiguration) ProgressSeconds() int64 {
	if c == nil || c.ProgressTimeout == nil {
		return defaultMigrationTimeout
	}
	return *c.ProgressTimeout
}

// UtilityVolumesSeconds returns how many seconds a migration waits for utility volumes to detach.
func (c *MigrationConfiguration) UtilityVolumesSeconds() int64 {
	if c == nil || c.UtilityVolumesTimeout == nil {
		return defaultMigrationTimeout
	}
	return *c.UtilityVolumesTimeout
}

// CompletionSeconds returns how many seconds the migration of a guest with this memory may take. A part of a GiB counts
// as one, and so does a memory without a size.
func (c *MigrationConfiguration) CompletionSeconds(memory *Memory) int64 {
	var memoryBytes int64
	if memory != nil && memory.Guest != nil {
		memoryBytes = memory.Guest.Value()
	}
	perGiB := int64(defaultMigrationTimeout)
	if c != nil && c.CompletionTimeoutPerGiB != nil {
		perGiB = *c.CompletionTimeoutPerGiB
	}
	return perGiB * max(1, (memoryBytes+1<<30-1)>>30)
}
