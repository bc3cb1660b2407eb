package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// VirtualMachineBackupTracker remembers the last checkpoint that one backup solution has of one
// virtual machine. Each solution has its own, so that they do not
// interfere with each other.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=vmbackuptracker;vmbackuptrackers,categories=all
// +kubebuilder:metadata:labels="app.kubernetes.io/part-of=varve"
// +kubebuilder:subresource:status
// +kubebuilder:selectablefield:JSONPath=`.spec.source.name`
// +kubebuilder:printcolumn:name="VM",type=string,JSONPath=`.spec.source.name`
// +kubebuilder:printcolumn:name="Checkpoint",type=string,JSONPath=`.status.latestCheckpoint.name`
// +kubebuilder:printcolumn:name="Taken",type=date,JSONPath=`.status.latestCheckpoint.creationTime`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 200",message="metadata.name must be at most 200 characters: checkpoints are named after it"
type VirtualMachineBackupTracker struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec VirtualMachineBackupTrackerSpec `json:"spec"`
	// +optional
	Status VirtualMachineBackupTrackerStatus `json:"status,omitempty"`
}

// VirtualMachineBackupTrackerList is a list of VirtualMachineBackupTrackers.
//
// +kubebuilder:object:root=true
type VirtualMachineBackupTrackerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []VirtualMachineBackupTracker `json:"items"`
}

// VirtualMachineBackupTrackerSpec says which virtual machine is tracked.
//
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="spec is immutable: create another tracker"
type VirtualMachineBackupTrackerSpec struct {
	// source is the virtual machine, in the tracker's namespace.
	// +kubebuilder:validation:XValidation:rule="has(self.apiGroup) && self.apiGroup == 'kubevirt.io'",message="apiGroup must be kubevirt.io",fieldPath=".apiGroup"
	// +kubebuilder:validation:XValidation:rule="self.kind == 'VirtualMachine'",message="kind must be VirtualMachine",fieldPath=".kind"
	// +kubebuilder:validation:XValidation:rule="size(self.name) > 0",message="name is required",fieldPath=".name"
	Source corev1.TypedLocalObjectReference `json:"source"`
}

// VirtualMachineBackupTrackerStatus is what the tracker remembers.
type VirtualMachineBackupTrackerStatus struct {
	// latestCheckpoint is the checkpoint of the last backup that succeeded: the base of the next incremental backup. If it is
	// absent, the next backup is full.
	// +optional
	LatestCheckpoint *Checkpoint `json:"latestCheckpoint,omitempty"`

	// discarded says which disks have lost their base since the last backup, and why. Their next backup is full. The next
	// backup that succeeds clears the list.
	// +optional
	// +listType=map
	// +listMapKey=volume
	Discarded []DiscardedDisk `json:"discarded,omitempty"`

	// newestCheckpointTime is the time in the newest checkpoint name that was given out, even if that backup failed later. It
	// keeps a name from being used twice.
	// +optional
	NewestCheckpointTime *metav1.Time `json:"newestCheckpointTime,omitempty"`
}

// Checkpoint is a point in time that an incremental backup can start from.
type Checkpoint struct {
	// name is `<tracker>-<RFC 3339 time>`; it is never used again.
	Name string `json:"name"`
	// creationTime is the point in time.
	CreationTime metav1.Time `json:"creationTime"`
	// disks are the names of the volumes that have a valid bitmap for the checkpoint.
	// +optional
	// +listType=set
	Disks []string `json:"disks,omitempty"`
	// volumes are the same as disks, for clients of KubeVirt's released API.
	// +optional
	// +listType=map
	// +listMapKey=volumeName
	Volumes []CheckpointVolume `json:"volumes,omitempty"`
	// backupName is the VirtualMachineBackup that created the checkpoint.
	// +optional
	BackupName string `json:"backupName,omitempty"`
	// backupUID is the UID of that backup. The manifest of the next backup names its parent by it.
	// +optional
	BackupUID types.UID `json:"backupUID,omitempty"`
	// target is where that backup's files are. The next backup is incremental only on the same claim, and only while the
	// directory holds exactly this manifest. If an older version recorded the checkpoint, target is absent, and the next backup is full.
	// +optional
	Target *BackupTarget `json:"target,omitempty"`
}

// CheckpointVolume is one volume of a checkpoint.
type CheckpointVolume struct {
	// volumeName is the volume's name in the virtual machine.
	VolumeName string `json:"volumeName"`
	// diskTarget is the device's name in the hypervisor's configuration when the checkpoint was created, such as vda.
	// +optional
	DiskTarget string `json:"diskTarget,omitempty"`
}

// BackupTarget says where the files of a backup are. Its identifiers are never reused.
type BackupTarget struct {
	// pvcName is the PersistentVolumeClaim, in the backup's namespace.
	PVCName string `json:"pvcName"`
	// pvcUID is the UID of that claim. It tells it from a claim that is created later under the same name.
	PVCUID types.UID `json:"pvcUID"`
	// directory is relative to the root of the claim's volume.
	Directory string `json:"directory"`
	// manifestSHA256 is the hash of the directory's backup.json, in hexadecimal.
	ManifestSHA256 string `json:"manifestSHA256"`
}

// DiscardedDisk is a disk whose bitmap could not be trusted.
type DiscardedDisk struct {
	// volume is the disk's volume.
	Volume string `json:"volume"`
	// reason is why the next backup of the disk is full: BitmapLost or DiskReplaced.
	Reason FullReason `json:"reason"`
	// message says what the node found.
	// +optional
	Message string `json:"message,omitempty"`
}
