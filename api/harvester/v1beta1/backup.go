package v1beta1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// Annotations of a VirtualMachineBackup.
const (
	// AnnotationLocation names the BackupStorageLocation, which is in Varve's namespace. Without it, the default one is
	// used.
	AnnotationLocation = "varvebackup.io/location"
	// AnnotationExcludeVolumes names volumes of the machine that are left out, separated by commas.
	AnnotationExcludeVolumes = "varvebackup.io/exclude-volumes"
	// AnnotationScratchClass names the StorageClass of the claim for what the guest overwrites while its disks are read.
	// Without it, the class of a disk is used that is a file, or else the cluster's default one.
	AnnotationScratchClass = "varvebackup.io/scratch-storage-class"
	// AnnotationScratchSize is the size of that claim, such as 20Gi, for a machine that overwrites more than it is made for.
	// Without it, all of small disks has room, and a tenth of large ones.
	AnnotationScratchSize = "varvebackup.io/scratch-size"
	// AnnotationSnapshotID names a disk of a machine that a location has already, by its snapshot ID. The backup is then not
	// made, but found: it has the disks that were stored together with this one, and the machine's definition.
	AnnotationSnapshotID = "varvebackup.io/snapshot-id"
	// AnnotationFreeze is "false" if the guest's file systems are not to be frozen. It is Harvester's.
	AnnotationFreeze = "harvesterhci.io/snapshotFreezeFS"
)

// VirtualMachineBackup is a virtual machine as it was at one moment: its disks and its definition.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=machinebackup;machinebackups,categories=all
// +kubebuilder:metadata:labels="app.kubernetes.io/part-of=varve"
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="SOURCE_KIND",type=string,JSONPath=`.spec.source.kind`
// +kubebuilder:printcolumn:name="SOURCE_NAME",type=string,JSONPath=`.spec.source.name`
// +kubebuilder:printcolumn:name="TYPE",type=string,JSONPath=`.spec.type`
// +kubebuilder:printcolumn:name="READY_TO_USE",type=boolean,JSONPath=`.status.readyToUse`
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="PROGRESS",type=integer,JSONPath=`.status.progress`,priority=1
// +kubebuilder:printcolumn:name="ERROR",type=string,JSONPath=`.status.error.message`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 200",message="metadata.name must be at most 200 characters: other objects are named after it"
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

// BackupType says where the data of a backup goes.
//
// +kubebuilder:validation:Enum=backup;snapshot
type BackupType string

const (
	// Backup is a backup in a BackupStorageLocation.
	Backup BackupType = "backup"
	// Snapshot is a set of VolumeSnapshots, which stay in the machine's storage and namespace.
	Snapshot BackupType = "snapshot"
)

// SourceKind is the kind of what is backed up and restored.
const SourceKind = "VirtualMachine"

// VirtualMachineBackupSpec says what is backed up.
//
// +kubebuilder:validation:XValidation:rule="self.source == oldSelf.source",message="spec.source is immutable: create another backup"
// +kubebuilder:validation:XValidation:rule="self.type == oldSelf.type",message="spec.type is immutable"
// +kubebuilder:validation:XValidation:rule="!has(self.fsFreezeDeadline) || has(self.type) && self.type == 'snapshot'",message="fsFreezeDeadline is for type snapshot: a backup of a running machine holds the freeze for milliseconds, and for 30 s at the most",fieldPath=".fsFreezeDeadline"
type VirtualMachineBackupSpec struct {
	// source is the virtual machine, in the backup's namespace.
	// +kubebuilder:validation:XValidation:rule="!has(self.apiGroup) || self.apiGroup == 'kubevirt.io'",message="apiGroup must be kubevirt.io",fieldPath=".apiGroup"
	// +kubebuilder:validation:XValidation:rule="self.kind == 'VirtualMachine'",message="kind must be VirtualMachine",fieldPath=".kind"
	// +kubebuilder:validation:XValidation:rule="size(self.name) > 0",message="name is required",fieldPath=".name"
	Source corev1.TypedLocalObjectReference `json:"source"`
	// type is backup or snapshot. A backup is in a BackupStorageLocation. A snapshot is in the machine's storage, is lost
	// with it, and can be restored in its own namespace.
	// +kubebuilder:default=backup
	// +optional
	Type BackupType `json:"type,omitempty"`
	// fsFreezeDeadline is how long the guest's file systems may be frozen for a snapshot, such as "5s". Without it, with 0s,
	// and at the most, it is 30 s.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="must not be negative"
	// +optional
	FSFreezeDeadline *metav1.Duration `json:"fsFreezeDeadline,omitempty"`
}

// VirtualMachineBackupStatus says how far the backup is, and has what a restore needs.
type VirtualMachineBackupStatus struct {
	// sourceUID is the machine's UID.
	// +optional
	SourceUID *types.UID `json:"sourceUID,omitempty"`
	// creationTime is when the backup was complete.
	// +optional
	// +nullable
	CreationTime *metav1.Time `json:"creationTime,omitempty"`
	// backupTarget is the bucket that holds the backup. It is absent if the location is not a bucket.
	// +optional
	BackupTarget *BackupTarget `json:"backupTarget,omitempty"`
	// csiDriverVolumeSnapshotClassNames are the VolumeSnapshotClasses of a snapshot, by the drivers of its disks.
	// +optional
	CSIDriverVolumeSnapshotClassNames map[string]string `json:"csiDriverVolumeSnapshotClassNames,omitempty"`
	// source is the machine as it was.
	// +optional
	Source *VirtualMachineSourceSpec `json:"source,omitempty"`
	// volumeBackups has the machine's disks, in the order of its volumes.
	// +optional
	// +listType=atomic
	VolumeBackups []VolumeBackup `json:"volumeBackups,omitempty"`
	// secretBackups names the Secrets that the machine refers to. Their content is in the repository alone. A snapshot does
	// not have it.
	// +optional
	// +listType=atomic
	SecretBackups []SecretBackup `json:"secretBackups,omitempty"`
	// progress is how much of all disks is stored, in percent.
	// +optional
	Progress int `json:"progress,omitempty"`
	// readyToUse is true when all disks and the definition are stored.
	// +optional
	ReadyToUse *bool `json:"readyToUse,omitempty"`
	// error says why the backup failed.
	// +optional
	Error *Error `json:"error,omitempty"`
	// conditions are Ready, InProgress and MetadataReady.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
	// excludedVolumes has the machine's volumes that are not in the backup.
	// +optional
	// +listType=map
	// +listMapKey=name
	ExcludedVolumes []ExcludedVolume `json:"excludedVolumes,omitempty"`
	// location is the BackupStorageLocation that the backup is in.
	// +optional
	Location *LocationReference `json:"location,omitempty"`
	// scratchBytes is the size of the claim for what the guest overwrites while its disks are read. All tracked disks
	// count, also those that are left out.
	// +optional
	ScratchBytes int64 `json:"scratchBytes,omitempty"`
	// nodeName is the node that the machine ran on. A restore puts volumes there that are made for a node.
	// +optional
	NodeName string `json:"nodeName,omitempty"`
	// stopped is set if the machine did not run. It has what tells that somebody may have written to its disks since.
	// +optional
	Stopped *StoppedMachine `json:"stopped,omitempty"`
	// untracked is set if the machine ran under KubeVirt and its changes were not tracked. Its disks are read from a
	// VirtualMachineSnapshot of snapshot.kubevirt.io, as a whole.
	// +optional
	Untracked *UntrackedMachine `json:"untracked,omitempty"`
	// madeAgain says why KubeVirt's backup was made a second time, which reads all disks as a whole. It is empty if it was
	// made once.
	// +optional
	MadeAgain string `json:"madeAgain,omitempty"`
	// sourceIndications say how consistent a snapshot is: whether the guest ran, and whether its file systems were frozen.
	// +optional
	// +listType=atomic
	SourceIndications []SourceIndication `json:"sourceIndications,omitempty"`
	// group is what the DataUploads and the restore points of the backup have in common, and the name of the
	// VirtualMachineBackup of backup.kubevirt.io that is made for them. It is the name of the VirtualMachineSnapshot of
	// snapshot.kubevirt.io that a snapshot is.
	// +optional
	Group string `json:"group,omitempty"`
}

// SourceIndication says something of the machine at the moment of a snapshot, as VirtualMachineSnapshot of
// snapshot.kubevirt.io does.
type SourceIndication struct {
	// indication is Online, NoGuestAgent, GuestAgent, QuiesceTimeout or Paused.
	Indication string `json:"indication"`
	// message says what that means for the snapshot.
	// +optional
	Message string `json:"message,omitempty"`
}

// BackupTarget is a bucket.
type BackupTarget struct {
	// endpoint is the URL of the S3 service.
	// +optional
	Endpoint string `json:"endpoint,omitempty"`
	// bucketName is the bucket's name.
	// +optional
	BucketName string `json:"bucketName,omitempty"`
	// bucketRegion is the bucket's region.
	// +optional
	BucketRegion string `json:"bucketRegion,omitempty"`
}

// ObjectMetadata is what a backup keeps of an object's metadata.
type ObjectMetadata struct {
	// name is the object's name.
	// +optional
	Name string `json:"name,omitempty"`
	// namespace is the object's namespace.
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// labels are the object's labels.
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
	// annotations are the object's annotations.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
}

// VirtualMachineSourceSpec is a virtual machine as it was.
type VirtualMachineSourceSpec struct {
	// metadata is the machine's metadata.
	// +optional
	ObjectMeta ObjectMetadata `json:"metadata,omitempty"`
	// spec is the machine's spec, with the hardware addresses of the instance that ran.
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	// +optional
	Spec runtime.RawExtension `json:"spec,omitempty"`
}

// StoppedMachine is what a machine was like that did not run when its backup began. If something of it is different when
// all disks are stored, the backup fails.
type StoppedMachine struct {
	// generation is that of the machine's spec.
	// +optional
	Generation int64 `json:"generation,omitempty"`
	// claims are those of the disks.
	// +optional
	// +listType=atomic
	Claims []StoppedClaim `json:"claims,omitempty"`
	// endedPods are the UIDs of the pods that could write to these claims, and had ended.
	// +optional
	// +listType=atomic
	EndedPods []types.UID `json:"endedPods,omitempty"`
}

// StoppedClaim is the claim of a disk of a machine that did not run.
type StoppedClaim struct {
	// name is the claim's name.
	Name string `json:"name"`
	// uid is the claim's UID.
	UID types.UID `json:"uid"`
	// run is the last run of a pod that could write to the claim.
	// +optional
	Run string `json:"run,omitempty"`
}

// UntrackedMachine is a machine whose disks are read from a snapshot, because nobody tracks what changes on them.
type UntrackedMachine struct {
	// message says why the changes were not tracked, and what to do to have them tracked.
	Message string `json:"message"`
	// snapshotUID is the UID of the VirtualMachineSnapshot that the disks are read from. It is empty until that is ready.
	// +optional
	SnapshotUID types.UID `json:"snapshotUID,omitempty"`
}

// VolumeBackup is a disk in a backup.
type VolumeBackup struct {
	// name is `<backup>-volume-<claim>`.
	// +optional
	Name *string `json:"name,omitempty"`
	// volumeName is the name of the machine's volume.
	VolumeName string `json:"volumeName"`
	// csiDriverName is the driver of the disk's volume.
	// +optional
	CSIDriverName string `json:"csiDriverName,omitempty"`
	// creationTime is when the disk was stored.
	// +optional
	// +nullable
	CreationTime *metav1.Time `json:"creationTime,omitempty"`
	// persistentVolumeClaim is the disk's claim as it was.
	PersistentVolumeClaim PersistentVolumeClaimSourceSpec `json:"persistentVolumeClaim"`
	// volumeSize is the size of the disk in bytes.
	// +optional
	VolumeSize int64 `json:"volumeSize,omitempty"`
	// progress is how much of the disk is stored, in percent.
	// +optional
	Progress int `json:"progress,omitempty"`
	// readyToUse is true when the disk is stored.
	// +optional
	ReadyToUse *bool `json:"readyToUse,omitempty"`
	// error says why the disk could not be stored.
	// +optional
	Error *Error `json:"error,omitempty"`
	// dataUpload is the name of the DataUpload that stores the disk, in the location's namespace.
	// +optional
	DataUpload string `json:"dataUpload,omitempty"`
	// snapshotID says where in the location the disk is.
	// +optional
	SnapshotID string `json:"snapshotID,omitempty"`
	// volumeSnapshotName is the VolumeSnapshot that has the disk of a snapshot, in the backup's namespace.
	// +optional
	VolumeSnapshotName *string `json:"volumeSnapshotName,omitempty"`
	// changedBytes is how much was new or changed since the backup before.
	// +optional
	ChangedBytes int64 `json:"changedBytes,omitempty"`
	// fullReason says why the whole disk was read although its changes are tracked; empty for an incremental, and for a
	// first backup.
	// +optional
	FullReason string `json:"fullReason,omitempty"`
}

// PersistentVolumeClaimSourceSpec is a claim.
type PersistentVolumeClaimSourceSpec struct {
	// metadata is the claim's metadata.
	// +optional
	ObjectMeta ObjectMetadata `json:"metadata,omitempty"`
	// spec is the claim's spec.
	// +optional
	Spec corev1.PersistentVolumeClaimSpec `json:"spec,omitempty"`
}

// SecretBackup is a Secret in a backup.
type SecretBackup struct {
	// name is the Secret's name.
	Name string `json:"name,omitempty"`
	// data is not used: the content is in the repository, encrypted.
	// +optional
	Data map[string][]byte `json:"data,omitempty"`
}

// ExclusionReason says why a volume is not in a backup.
type ExclusionReason string

const (
	// NoClaim: the volume is on no PersistentVolumeClaim, so its content is in the definition or in an image.
	NoClaim ExclusionReason = "NoClaim"
	// ReadOnly: the guest cannot write to the volume, and its changes cannot be tracked.
	ReadOnly ExclusionReason = "ReadOnly"
	// Shareable: other guests may write to the volume at the same time.
	Shareable ExclusionReason = "Shareable"
	// NoDisk: no disk of the guest is on the volume.
	NoDisk ExclusionReason = "NoDisk"
	// NotRunningYet: the volume was added to the machine, and its guest gets it with its next start.
	NotRunningYet ExclusionReason = "NotRunningYet"
	// HotPlugged: the running guest has the volume, and the virtual machine does not.
	HotPlugged ExclusionReason = "HotPlugged"
	// ExcludedByUser: the annotation varvebackup.io/exclude-volumes names the volume.
	ExcludedByUser ExclusionReason = "ExcludedByUser"
)

// ExcludedVolume is a volume of the machine that is not in the backup.
type ExcludedVolume struct {
	// name is the volume's name.
	Name string `json:"name"`
	// reason is NoClaim, ReadOnly, Shareable, NoDisk, NotRunningYet, HotPlugged or ExcludedByUser.
	Reason ExclusionReason `json:"reason"`
	// message says what that means.
	// +optional
	Message string `json:"message,omitempty"`
}

// LocationReference names a BackupStorageLocation.
type LocationReference struct {
	// namespace is the location's namespace.
	Namespace string `json:"namespace"`
	// name is the location's name.
	Name string `json:"name"`
}

// Error is a failure.
type Error struct {
	// time is when it was seen.
	// +optional
	// +nullable
	Time *metav1.Time `json:"time,omitempty"`
	// message says what failed, and what to do.
	// +optional
	Message *string `json:"message,omitempty"`
}

// IsReady says whether the backup can be restored.
func (b *VirtualMachineBackup) IsReady() bool {
	return b.Status.ReadyToUse != nil && *b.Status.ReadyToUse
}

// HasFailed says whether the backup has ended without being ready.
func (b *VirtualMachineBackup) HasFailed() bool { return b.Status.Error != nil && !b.IsReady() }
