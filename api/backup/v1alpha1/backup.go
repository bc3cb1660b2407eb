package v1alpha1

import (
	"cmp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// BackupFinalizer keeps a VirtualMachineBackup until what it left on the node is cleaned up.
const BackupFinalizer = "backup.kubevirt.io/vmbackup-protection"

// VirtualMachineBackup backs up one virtual machine once.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=vmbackup;vmbackups,categories=all
// +kubebuilder:metadata:labels="app.kubernetes.io/part-of=varve"
// +kubebuilder:subresource:status
// +kubebuilder:selectablefield:JSONPath=`.status.nodeName`
// +kubebuilder:selectablefield:JSONPath=`.status.checkpointName`
// +kubebuilder:printcolumn:name="VM",type=string,JSONPath=`.status.sourceName`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Type",type=string,JSONPath=`.status.backupType`
// +kubebuilder:printcolumn:name="Progress",type=string,JSONPath=`.status.progress.percent`
// +kubebuilder:printcolumn:name="Moved",type=string,JSONPath=`.status.moved`,description="How much was written to the target"
// +kubebuilder:printcolumn:name="Checkpoint",type=string,JSONPath=`.status.checkpointName`,priority=1
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.message`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="oldSelf.hasValue() || size(self.metadata.name) <= 230",optionalOldSelf=true,message="metadata.name must be at most 230 characters: the directory on the target is named after it"
type VirtualMachineBackup struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec VirtualMachineBackupSpec `json:"spec"`
	// +optional
	Status VirtualMachineBackupStatus `json:"status,omitempty"`
}

// VirtualMachineBackupList is a list of VirtualMachineBackups.
//
// +kubebuilder:object:root=true
type VirtualMachineBackupList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []VirtualMachineBackup `json:"items"`
}

// BackupMode says who moves the data. KubeVirt's released API spells the values with a capital letter.
//
// +kubebuilder:validation:Enum=push;Push;pull;Pull
type BackupMode string

const (
	// PushMode has the hypervisor write the data to a volume.
	PushMode BackupMode = "push"
	// PullMode has the hypervisor serve the data to whoever reads the backup's endpoints.
	PullMode BackupMode = "pull"
)

// DefaultTTL is how long a backup in pull mode lasts, from its creation, unless it says otherwise.
const DefaultTTL = 2 * time.Hour

// Kinds that spec.source of a backup may name, with their groups.
const (
	SourceKindVirtualMachine = "VirtualMachine"
	SourceKindTracker        = "VirtualMachineBackupTracker"
)

// VirtualMachineBackupSpec says what is backed up, from which base and to where.
//
// +kubebuilder:validation:XValidation:rule="has(self.source) == has(oldSelf.source) && (!has(self.source) || self.source == oldSelf.source) && has(self.backupTracker) == has(oldSelf.backupTracker) && (!has(self.backupTracker) || self.backupTracker == oldSelf.backupTracker) && has(self.mode) == has(oldSelf.mode) && (!has(self.mode) || self.mode == oldSelf.mode) && self.pvcName == oldSelf.pvcName && has(self.skipQuiesce) == has(oldSelf.skipQuiesce) && (!has(self.skipQuiesce) || self.skipQuiesce == oldSelf.skipQuiesce) && has(self.forceFullBackup) == has(oldSelf.forceFullBackup) && (!has(self.forceFullBackup) || self.forceFullBackup == oldSelf.forceFullBackup) && has(self.tokenSecretRef) == has(oldSelf.tokenSecretRef) && (!has(self.tokenSecretRef) || self.tokenSecretRef == oldSelf.tokenSecretRef) && has(self.pulledBy) == has(oldSelf.pulledBy) && (!has(self.pulledBy) || self.pulledBy == oldSelf.pulledBy)",message="spec is immutable, except for ttl: create another backup"
// +kubebuilder:validation:XValidation:rule="has(self.source) != has(self.backupTracker)",message="set exactly one of source (a VirtualMachine is backed up fully and keeps no checkpoint) and backupTracker"
// +kubebuilder:validation:XValidation:rule="!has(self.mode) || !(self.mode in ['pull', 'Pull']) || has(self.tokenSecretRef) || has(self.pulledBy) && self.pulledBy == 'DataUploads'",message="tokenSecretRef is required in pull mode: name a Secret whose key token has what clients must send",fieldPath=".tokenSecretRef",reason="FieldValueRequired"
// +kubebuilder:validation:XValidation:rule="!has(self.pulledBy) || has(self.mode) && self.mode in ['pull', 'Pull']",message="pulledBy is for pull mode: remove it, or set mode to pull",fieldPath=".pulledBy"
// +kubebuilder:validation:XValidation:rule="!has(self.ttl) || !has(self.ttlDuration) || duration(self.ttl) == duration(self.ttlDuration)",message="ttl and ttlDuration mean the same: set one of them",fieldPath=".ttl"
type VirtualMachineBackupSpec struct {
	// source is what is backed up, in the backup's namespace. A VirtualMachine (apiGroup kubevirt.io) is backed up fully and keeps no
	// checkpoint. A VirtualMachineBackupTracker (apiGroup backup.kubevirt.io) means the same as backupTracker.
	// +optional
	// +kubebuilder:validation:XValidation:rule="has(self.apiGroup) && self.apiGroup in ['kubevirt.io', 'backup.kubevirt.io']",message="apiGroup must be kubevirt.io or backup.kubevirt.io",fieldPath=".apiGroup"
	// +kubebuilder:validation:XValidation:rule="!has(self.apiGroup) || self.kind == (self.apiGroup == 'backup.kubevirt.io' ? 'VirtualMachineBackupTracker' : 'VirtualMachine')",message="kind must be VirtualMachine with apiGroup kubevirt.io, or VirtualMachineBackupTracker with apiGroup backup.kubevirt.io",fieldPath=".kind"
	// +kubebuilder:validation:XValidation:rule="size(self.name) > 0",message="name is required",fieldPath=".name"
	Source *corev1.TypedLocalObjectReference `json:"source,omitempty"`

	// backupTracker is the VirtualMachineBackupTracker whose latest checkpoint is the base, and which
	// remembers this backup's checkpoint when it succeeds.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	BackupTracker string `json:"backupTracker,omitempty"`

	// mode is push, where the hypervisor writes one qcow2 file per disk to the volume that pvcName names, or pull, where clients read
	// the disks from the endpoints in status until somebody deletes the backup. Push and Pull mean the same.
	// +kubebuilder:default=push
	// +optional
	Mode BackupMode `json:"mode,omitempty"`

	// pvcName is a claim in the backup's namespace with volumeMode Filesystem. The backup waits for it to exist. In pull mode it holds
	// what the guest overwrites while the backup is read, and is as it was when the backup has ended.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	PVCName string `json:"pvcName"`

	// skipQuiesce takes the backup without freezing the guest's file systems: it is crash consistent.
	// +optional
	SkipQuiesce bool `json:"skipQuiesce,omitempty"`

	// forceFullBackup makes the backup full even if the tracker has a checkpoint. Without a tracker every backup is full.
	// +optional
	ForceFullBackup bool `json:"forceFullBackup,omitempty"`

	// tokenSecretRef names, in pull mode, the Secret in the backup's namespace whose key token has what clients must send in the
	// header x-kubevirt-export-token: at least 16 characters. The backup waits for it to exist.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	TokenSecretRef *string `json:"tokenSecretRef,omitempty"`

	// pulledBy says, in pull mode, who reads the disks: Clients, over the endpoints in status, or DataUploads, whose mover pods
	// the launcher connects to. With DataUploads there are no endpoints, and the backup is made and deleted by Varve.
	// Default: Clients.
	// +optional
	PulledBy PullReader `json:"pulledBy,omitempty"`

	// ttl is how long a backup in pull mode lasts, from its creation. Then it fails and its tracker stays as it is. It may be changed
	// while the backup exists. Default: 2h.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="duration(self) > duration('0s')",message="must be a positive duration, such as 30m"
	TTL *metav1.Duration `json:"ttl,omitempty"`
	// ttlDuration means the same as ttl, for clients of KubeVirt's released API.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="duration(self) > duration('0s')",message="must be a positive duration, such as 30m"
	TTLDuration *metav1.Duration `json:"ttlDuration,omitempty"`
}

// PullReader says who reads the disks of a backup in pull mode.
//
// +kubebuilder:validation:Enum=Clients;DataUploads
type PullReader string

const (
	// PulledByClients: the backup has endpoints, which an export serves.
	PulledByClients PullReader = "Clients"
	// PulledByDataUploads: the launcher connects to mover pods, which store the disks in a repository.
	PulledByDataUploads PullReader = "DataUploads"
)

// IsPulledByDataUploads reports whether mover pods read the backup's data.
func (s *VirtualMachineBackupSpec) IsPulledByDataUploads() bool {
	return s.IsPull() && s.PulledBy == PulledByDataUploads
}

// IsPull reports whether somebody reads the backup's data from the hypervisor, instead of the hypervisor writing it.
func (s *VirtualMachineBackupSpec) IsPull() bool {
	return strings.EqualFold(string(s.Mode), string(PullMode))
}

// Lifetime returns how long a backup in pull mode lasts, from its creation.
func (s *VirtualMachineBackupSpec) Lifetime() time.Duration {
	switch {
	case s.TTL != nil:
		return s.TTL.Duration
	case s.TTLDuration != nil:
		return s.TTLDuration.Duration
	default:
		return DefaultTTL
	}
}

// TrackerName returns the tracker that the backup uses, whichever field names it, or "".
func (s *VirtualMachineBackupSpec) TrackerName() string {
	if s.Source != nil && s.Source.Kind == SourceKindTracker {
		return s.Source.Name
	}
	return s.BackupTracker
}

// MachineName returns the virtual machine that the backup itself names, or "" if its tracker does.
func (s *VirtualMachineBackupSpec) MachineName() string {
	if s.Source != nil && s.Source.Kind == SourceKindVirtualMachine {
		return s.Source.Name
	}
	return ""
}

// BackupType says whether a backup can be restored by itself.
type BackupType string

const (
	// Full holds all the data.
	Full BackupType = "Full"
	// Incremental holds what changed since the parent's checkpoint.
	Incremental BackupType = "Incremental"
)

// FullReason says why a disk's backup is full although a tracker is used.
type FullReason string

const (
	// FullNoTracker: the backup names a source, not a tracker.
	FullNoTracker FullReason = "NoTracker"
	// FullNoCheckpoint: the tracker has no checkpoint yet.
	FullNoCheckpoint FullReason = "NoCheckpoint"
	// FullForced: the backup asks for it.
	FullForced FullReason = "ForceFullBackup"
	// FullNewDisk: the disk was not part of the tracker's checkpoint.
	FullNewDisk FullReason = "NewDisk"
	// FullBitmapLost: the bitmap is missing or inconsistent: the guest crashed, or the claim that held it was deleted. The tracker's
	// status.discarded says which.
	FullBitmapLost FullReason = "BitmapLost"
	// FullDiskReplaced: the disk is not the one that was tracked, because its claim was made again or its content was replaced, or it
	// was written without its overlay.
	FullDiskReplaced FullReason = "DiskReplaced"
	// FullTargetReplaced: the backup goes to another claim than its base, or to one that was created again under the
	// same name.
	FullTargetReplaced FullReason = "TargetReplaced"
	// FullParentUnknown: the tracker does not record where the files of its checkpoint are, because clients pulled that
	// backup, or an older version made it.
	FullParentUnknown FullReason = "ParentUnknown"
	// FullParentMissing: files of the base, or of a backup that the base continues, are not on the target any more.
	FullParentMissing FullReason = "ParentMissing"
	// FullParentChanged: the manifest of the base, or of a backup that the base continues, is not the one that was
	// written.
	FullParentChanged FullReason = "ParentChanged"
)

// BackupPhase is the durable state of a backup. Each phase has one writer: the controller leaves
// Pending, Attaching, Copied, CopyFailed and Pruned; the handler of the guest's node leaves Starting,
// Copying, Serving and Pruning.
type BackupPhase string

const (
	// BackupPending: something that the backup needs is missing; message says what.
	BackupPending BackupPhase = "Pending"
	// BackupAttaching: the target volume is being attached to the launcher pod.
	BackupAttaching BackupPhase = "Attaching"
	// BackupStarting: the backup holds the lock and its plan is in status; the node begins.
	BackupStarting BackupPhase = "Starting"
	// BackupCopying: the point in time is fixed; data moves.
	BackupCopying BackupPhase = "Copying"
	// BackupServing: the point in time is fixed; clients can read the data, or soon can.
	BackupServing BackupPhase = "Serving"
	// BackupCopied: all data and the manifest are durable on the target, or clients have everything.
	BackupCopied BackupPhase = "Copied"
	// BackupCopyFailed: the copy failed or was given up; reason and message say why.
	BackupCopyFailed BackupPhase = "CopyFailed"
	// BackupPruning: the tracker is up to date; the node deletes the checkpoints that no tracker names and the partial
	// files of a failed backup.
	BackupPruning BackupPhase = "Pruning"
	// BackupPruned: the node has cleaned up; next the volume is detached and the lock is released.
	BackupPruned BackupPhase = "Pruned"
	// BackupDone: succeeded. Final.
	BackupDone BackupPhase = "Done"
	// BackupFailed: failed; the tracker did not move. Final.
	BackupFailed BackupPhase = "Failed"
)

// BackupResult is how a backup's copy ended.
//
// +kubebuilder:validation:Enum=Succeeded;Failed
type BackupResult string

const (
	// BackupSucceeded: every disk is on the target, and the tracker moved if there is one.
	BackupSucceeded BackupResult = "Succeeded"
	// BackupUnsuccessful: the tracker did not move; reason and message say why.
	BackupUnsuccessful BackupResult = "Failed"
)

// Final says that the phase does not change any more.
func (p BackupPhase) Final() bool { return p == BackupDone || p == BackupFailed }

// Condition types of a VirtualMachineBackup.
const (
	// ConditionInitializing is True until the point in time is fixed; its reason says what the backup waits for.
	ConditionInitializing = "Initializing"
	// ConditionReady is True while the endpoints of a backup in pull mode answer. Deleting the backup then says that its data was
	// read, and is a success.
	ConditionReady = "Ready"
	// ConditionExportReady is the same as Ready, under the name that clients of KubeVirt's released API wait for.
	ConditionExportReady = "ExportReady"
	// ConditionScratchLow is True while the claim of a backup in pull mode has little space left for what the guest overwrites.
	ConditionScratchLow = "ScratchSpaceLow"
	// ConditionProgressing is True while data is copied or can be read, and while the backup cleans up.
	ConditionProgressing = "Progressing"
	// ConditionDone is True when the backup has ended, well or not, as in KubeVirt 1.8. Its reason is a sentence, as there: "Successfully
	// completed VirtualMachineBackup", or one that begins with "Backup has failed: ". Scripts wait for Complete or Failed instead.
	ConditionDone = "Done"
	// ConditionComplete is True when the backup succeeded.
	ConditionComplete = "Complete"
	// ConditionFailed is True when the backup failed; reason is one of the Reason values.
	ConditionFailed = "Failed"
	// ConditionDeleting is True while a deleted backup is aborted and cleaned up.
	ConditionDeleting = "Deleting"
	// ConditionAborting is True while a backup ends that was deleted before its data was complete.
	ConditionAborting = "Aborting"
	// ConditionQuiesced is True if the guest's file systems were frozen at the point in time. If they were not, it is False
	// with a reason, and the backup is crash consistent.
	ConditionQuiesced = "Quiesced"
)

// Reasons that clients of KubeVirt's released versions look for.
const (
	// DoneSucceeded is the reason of the condition Done of a backup that succeeded, in KubeVirt 1.8.
	DoneSucceeded = "Successfully completed VirtualMachineBackup"
	// DoneFailed begins the reason of the condition Done of a backup that failed, in KubeVirt 1.8.
	DoneFailed = "Backup has failed: "
	// ReasonExportReady is the reason of the condition Progressing while the endpoints of a backup in pull mode answer, in
	// KubeVirt 1.9.
	ReasonExportReady = "ExportReady"
)

// VirtualMachineBackupStatus is the observed state of a backup.
type VirtualMachineBackupStatus struct {
	// phase is the durable state: Pending, Attaching, Starting, Copying (push mode), Serving (pull mode), Copied, CopyFailed,
	// Pruning, Pruned, Done or Failed.
	// +optional
	Phase BackupPhase `json:"phase,omitempty"`
	// reason is the present state in one CamelCase word, such as PVCNotFound, Copying or TargetFull.
	// +optional
	Reason string `json:"reason,omitempty"`
	// message says what the backup waits for or what happened, and what to do about it.
	// +optional
	Message string `json:"message,omitempty"`
	// conditions are Initializing, Progressing, Complete, Failed, Done (it has ended, either way), Deleting, Aborting and Quiesced, and
	// in pull mode Ready (also as ExportReady) and ScratchSpaceLow.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// backupType is Incremental if any disk is, and Full otherwise. includedVolumes has the type of each disk.
	// +optional
	BackupType BackupType `json:"backupType,omitempty"`
	// type is Full or Incremental, the same as backupType, for clients of KubeVirt's released API.
	// +optional
	Type BackupType `json:"type,omitempty"`
	// checkpointName is the checkpoint that this backup creates. Absent without a tracker.
	// +optional
	CheckpointName string `json:"checkpointName,omitempty"`
	// baseCheckpoint is the tracker's checkpoint that the incremental disks start from.
	// +optional
	BaseCheckpoint *Checkpoint `json:"baseCheckpoint,omitempty"`
	// excludedVolumes are the machine's volumes that are not in the backup, with the reason. They are known once the point in time is
	// fixed.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=256
	ExcludedVolumes []ExcludedVolume `json:"excludedVolumes,omitempty"`
	// includedVolumes has one entry for each disk.
	// +optional
	// +listType=map
	// +listMapKey=name
	IncludedVolumes []IncludedVolume `json:"includedVolumes,omitempty"`

	// result is how the copy ended: it is fixed before the backup cleans up, and decides the final phase.
	// +optional
	Result BackupResult `json:"result,omitempty"`
	// trackerUID is the UID of the tracker that the backup was planned with. It tells it from a tracker that is created later under
	// the same name.
	// +optional
	TrackerUID types.UID `json:"trackerUID,omitempty"`
	// replacesCheckpoint is the name of the tracker's latest checkpoint when the backup was planned, even if
	// forceFullBackup leaves it unused. The tracker moves only if it has no newer checkpoint.
	// +optional
	ReplacesCheckpoint string `json:"replacesCheckpoint,omitempty"`

	// sourceName is the virtual machine.
	// +optional
	SourceName string `json:"sourceName,omitempty"`
	// instanceUID is the VirtualMachineInstance that the backup was started on.
	// +optional
	InstanceUID types.UID `json:"instanceUID,omitempty"`
	// nodeName is the node on which it runs.
	// +optional
	NodeName string `json:"nodeName,omitempty"`
	// pvcName is the PersistentVolumeClaim that the files are written to.
	// +optional
	PVCName string `json:"pvcName,omitempty"`
	// pvcUID is the UID of that claim. It tells it from a claim that is created later under the same name.
	// +optional
	PVCUID types.UID `json:"pvcUID,omitempty"`
	// directory is the directory with the backup's files, relative to the root of the target volume.
	// +optional
	Directory string `json:"directory,omitempty"`
	// manifestSHA256 is the hash of the directory's backup.json, in hexadecimal.
	// +optional
	ManifestSHA256 string `json:"manifestSHA256,omitempty"`

	// progress says how far the copy has come.
	// +optional
	Progress *Progress `json:"progress,omitempty"`
	// cert has, in pull mode, the certificates of the authorities that sign for the endpoints, in PEM.
	// +optional
	Cert string `json:"cert,omitempty"`
	// endpointCert is the same as cert, for clients of KubeVirt's released API.
	// +optional
	EndpointCert string `json:"endpointCert,omitempty"`
	// exportName is, in pull mode, the VirtualMachineExport that serves the backup.
	// +optional
	ExportName string `json:"exportName,omitempty"`
	// pullTunnelSecret names, in pull mode, the Secret whose key token authenticates the guest's launcher and whoever reads its
	// backup to each other.
	// +optional
	PullTunnelSecret string `json:"pullTunnelSecret,omitempty"`
	// pullTunnel is where the launcher connects to.
	// +optional
	PullTunnel *PullTunnel `json:"pullTunnel,omitempty"`
	// pullTunnels is where the launcher connects to with single volumes, if DataUploads pull the backup.
	// +optional
	// +listType=map
	// +listMapKey=volume
	PullTunnels []VolumeTunnel `json:"pullTunnels,omitempty"`
	// scratch says, in pull mode, how full the claim is that holds what the guest overwrites.
	// +optional
	Scratch *ScratchSpace `json:"scratch,omitempty"`

	// movedBytes is how much was written to the target or, in pull mode, read by clients, in bytes. What is read twice counts twice.
	// +optional
	MovedBytes int64 `json:"movedBytes,omitempty"`
	// moved is movedBytes rounded for people, such as 91Mi or 1.2Gi. Programs read movedBytes.
	// +optional
	Moved string `json:"moved,omitempty"`
	// frozenMillis is how long the guest's file systems were frozen, in milliseconds.
	// +optional
	FrozenMillis *int64 `json:"frozenMillis,omitempty"`
	// copyMillis is how long the hypervisor's copy took, in milliseconds.
	// +optional
	CopyMillis int64 `json:"copyMillis,omitempty"`
	// sealMillis is how long it then took to hash the files and to make them durable, in milliseconds.
	// +optional
	SealMillis int64 `json:"sealMillis,omitempty"`

	// startTimestamp is the point in time that the backup shows.
	// +optional
	StartTimestamp *metav1.Time `json:"startTimestamp,omitempty"`
	// completionTimestamp is when the backup became Done or Failed.
	// +optional
	CompletionTimestamp *metav1.Time `json:"completionTimestamp,omitempty"`
	// waitsBehind is the backup of the same machine that goes before this one, while this one waits for its turn.
	// +optional
	WaitsBehind string `json:"waitsBehind,omitempty"`
	// placeWait says how long the backup has waited for a place on its node.
	// +optional
	PlaceWait *PlaceWait `json:"placeWait,omitempty"`
	// phaseDeadline is when the backup gives up its present phase.
	// +optional
	PhaseDeadline *metav1.Time `json:"phaseDeadline,omitempty"`
}

// PullTunnel is where a launcher offers the disks of its backup.
type PullTunnel struct {
	// address is host:port. The launcher connects to it.
	Address string `json:"address"`
	// serverName is what the certificate there must be for.
	ServerName string `json:"serverName"`
	// authorities have the certificates of those who may have signed it, in PEM.
	Authorities string `json:"authorities"`
}

// VolumeTunnel is where a launcher offers one volume of its backup.
type VolumeTunnel struct {
	// volume is the volume's name in the virtual machine. No other volume is offered there.
	Volume string `json:"volume"`

	PullTunnel `json:",inline"`
}

// ScratchSpace says how full a scratch claim is.
type ScratchSpace struct {
	// usedBytes is what the guest has overwritten since the point in time, as far as it has to be kept, in bytes.
	UsedBytes int64 `json:"usedBytes"`
	// freeBytes is how much more the claim can hold, in bytes. When nothing is left, the backup fails; the guest never waits.
	FreeBytes int64 `json:"freeBytes"`
}

// Readable says that the endpoints of a backup in pull mode answer, in any dialect of the API: Ready of the proposal, ExportReady of
// KubeVirt 1.8, or Progressing with the reason ExportReady of KubeVirt 1.9.
func (b *VirtualMachineBackup) Readable() bool {
	if b.DeletionTimestamp != nil {
		return false
	}
	for _, kind := range []string{ConditionReady, ConditionExportReady} {
		if meta.IsStatusConditionTrue(b.Status.Conditions, kind) {
			return true
		}
	}
	c := meta.FindStatusCondition(b.Status.Conditions, ConditionProgressing)
	return c != nil && c.Status == metav1.ConditionTrue && c.Reason == ReasonExportReady
}

// Ended says whether a backup has ended, in any dialect of the API, and why, as far as it tells. KubeVirt 1.8 has free text in
// reasons.
func (b *VirtualMachineBackup) Ended() (why string, ended bool) {
	for _, kind := range []string{ConditionFailed, ConditionDone, ConditionComplete} {
		if c := meta.FindStatusCondition(b.Status.Conditions, kind); c != nil && c.Status == metav1.ConditionTrue {
			return cmp.Or(c.Message, c.Reason), true
		}
	}
	return "", false
}

// Progress says how far a copy has come.
type Progress struct {
	// totalBytes is how much the hypervisor expects to copy, plus how much is then read back to hash it. In pull mode it is how much
	// data the disks are expected to have.
	TotalBytes int64 `json:"totalBytes"`
	// processedBytes is how much of it is done.
	ProcessedBytes int64 `json:"processedBytes"`
	// percent is processedBytes as a share of totalBytes, such as "42%".
	Percent string `json:"percent"`
}

// ExclusionReason says why a volume of the machine is not in a backup.
type ExclusionReason string

const (
	// ExcludedReadOnly: the guest cannot write to the disk.
	ExcludedReadOnly ExclusionReason = "ReadOnly"
	// ExcludedShareable: other guests may write to the disk, too, and nobody sees what they change.
	ExcludedShareable ExclusionReason = "Shareable"
	// ExcludedNotTracked: changes of the disk are not recorded; message says why.
	ExcludedNotTracked ExclusionReason = "NotTracked"
	// ExcludedNotAttached: the volume was added to the machine's template, and its guest gets it at its next start.
	ExcludedNotAttached ExclusionReason = "RestartRequired"
)

// ExcludedVolume is a volume of the machine that is not in a backup.
type ExcludedVolume struct {
	// name is the volume's name in the virtual machine.
	Name string `json:"name"`
	// reason is ReadOnly, Shareable, NotTracked or RestartRequired.
	Reason ExclusionReason `json:"reason"`
	// message says why, and what to do if the volume should be in backups.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}

// PlaceWait says how long a backup has waited for a place on its node. That time does not count against the limit for what others
// must provide.
type PlaceWait struct {
	// since is when the present wait for a place began. Absent while the backup does not wait for one.
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
	// seconds is how long earlier waits for a place took.
	// +optional
	Seconds int64 `json:"seconds,omitempty"`
}

// IncludedVolume is one disk of a backup.
type IncludedVolume struct {
	// name is the volume's name in the virtual machine.
	Name string `json:"name"`
	// volumeName is the same as name, for clients of KubeVirt's released API.
	// +optional
	VolumeName string `json:"volumeName,omitempty"`
	// diskTarget is the device's name in the hypervisor's configuration, such as vda.
	// +optional
	DiskTarget string `json:"diskTarget,omitempty"`
	// type is Full if this disk's file stands alone, or Incremental if it needs the file of the base.
	// +optional
	Type BackupType `json:"type,omitempty"`
	// fullReason says why the disk is full: NoTracker, NoCheckpoint, ForceFullBackup, NewDisk, BitmapLost, DiskReplaced,
	// TargetReplaced, ParentUnknown, ParentMissing or ParentChanged. Absent on an incremental disk.
	// +optional
	FullReason FullReason `json:"fullReason,omitempty"`
	// virtualBytes is the disk's size in bytes.
	// +optional
	VirtualBytes int64 `json:"virtualBytes,omitempty"`
	// mapEndpoint is, in pull mode, the URL that says where the disk has data, or what has changed.
	// +optional
	MapEndpoint string `json:"mapEndpoint,omitempty"`
	// dataEndpoint is, in pull mode, the URL of the disk's data.
	// +optional
	DataEndpoint string `json:"dataEndpoint,omitempty"`
	// movedBytes is how much of this disk was written to the target, in bytes.
	// +optional
	MovedBytes int64 `json:"movedBytes,omitempty"`
	// file is the disk's qcow2 file, relative to the root of the target volume.
	// +optional
	File string `json:"file,omitempty"`
	// sha256 is the hash of that file, in hexadecimal.
	// +optional
	SHA256 string `json:"sha256,omitempty"`
}
