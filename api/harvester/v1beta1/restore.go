package v1beta1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Annotations of a VirtualMachineRestore. AnnotationExcludeVolumes names volumes that the restored machine does not have.
const (
	// AnnotationReplaceUID confirms which machine is replaced: its value is the UID of that machine. It is needed if the
	// backup is of another machine.
	AnnotationReplaceUID = "varvebackup.io/replace-uid"
	// AnnotationStopTarget is "true" if the restore stops the machine that it replaces, once the disks are restored.
	AnnotationStopTarget = "varvebackup.io/stop-target"
	// AnnotationStorageClassMap says which StorageClasses the new claims have: `old=new,old2=new2`. `*`, or nothing, as old
	// stands for any other one.
	AnnotationStorageClassMap = "varvebackup.io/storage-class-map"
	// AnnotationDiskSizes makes claims larger than they were: `volume=20Gi,volume2=1Ti`.
	AnnotationDiskSizes = "varvebackup.io/disk-sizes"
)

// AnnotationRestoredFrom is on a machine that a restore made or replaced: the UIDs of the machines whose backups it comes
// from, separated by commas, the latest first.
const AnnotationRestoredFrom = "varvebackup.io/restored-from"

// DeletionPolicy says what becomes of the claims of a machine that is replaced.
//
// +kubebuilder:validation:Enum=delete;retain
type DeletionPolicy string

// Policies for the claims of a machine that is replaced.
const (
	DeletionPolicyDelete DeletionPolicy = "delete"
	DeletionPolicyRetain DeletionPolicy = "retain"
)

// VirtualMachineRestore brings a virtual machine back from a VirtualMachineBackup.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=machinerestore;machinerestores,categories=all
// +kubebuilder:metadata:labels="app.kubernetes.io/part-of=varve"
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="TARGET_KIND",type=string,JSONPath=`.spec.target.kind`
// +kubebuilder:printcolumn:name="TARGET_NAME",type=string,JSONPath=`.spec.target.name`
// +kubebuilder:printcolumn:name="COMPLETE",type=boolean,JSONPath=`.status.complete`
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="PROGRESS",type=integer,JSONPath=`.status.progress`,priority=1
// +kubebuilder:printcolumn:name="MESSAGE",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 200",message="metadata.name must be at most 200 characters: other objects are named after it"
type VirtualMachineRestore struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec VirtualMachineRestoreSpec `json:"spec"`
	// +optional
	Status VirtualMachineRestoreStatus `json:"status,omitempty"`
}

// VirtualMachineRestoreList is a list of VirtualMachineRestores.
//
// +kubebuilder:object:root=true
type VirtualMachineRestoreList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []VirtualMachineRestore `json:"items"`
}

// VirtualMachineRestoreSpec says what is restored, and as what.
//
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="VirtualMachineRestore spec is immutable"
// +kubebuilder:validation:XValidation:rule="!self.newVM || !has(self.deletionPolicy) || self.deletionPolicy == 'retain'",message="deletionPolicy delete is for a machine that is replaced: set newVM to false, or leave deletionPolicy out",fieldPath=".deletionPolicy"
type VirtualMachineRestoreSpec struct {
	// target is the virtual machine that is made or replaced, in the restore's namespace.
	// +kubebuilder:validation:XValidation:rule="!has(self.apiGroup) || self.apiGroup == 'kubevirt.io'",message="apiGroup must be kubevirt.io",fieldPath=".apiGroup"
	// +kubebuilder:validation:XValidation:rule="self.kind == 'VirtualMachine'",message="kind must be VirtualMachine",fieldPath=".kind"
	// +kubebuilder:validation:XValidation:rule="self.name.size() <= 63 && self.name.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')",message="Target VM name is invalid: it has at most 63 characters, lower case, digits, '-' and '.'",fieldPath=".name"
	Target corev1.TypedLocalObjectReference `json:"target"`
	// virtualMachineBackupName is the name of the VirtualMachineBackup.
	// +kubebuilder:validation:MinLength=1
	VirtualMachineBackupName string `json:"virtualMachineBackupName"`
	// virtualMachineBackupNamespace is its namespace.
	// +kubebuilder:validation:MinLength=1
	VirtualMachineBackupNamespace string `json:"virtualMachineBackupNamespace"`
	// newVM makes a new machine, whose name must be free. false replaces the machine that exists, which keeps its UID.
	NewVM bool `json:"newVM"`
	// deletionPolicy says what becomes of the claims of a machine that is replaced, once it is back: retain, the default,
	// or delete.
	// +optional
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`
	// keepMacAddress keeps the hardware addresses that the machine had. Two machines with one address must not be in one
	// network. A machine that is replaced always gets those of the backup.
	// +optional
	KeepMacAddress bool `json:"keepMacAddress,omitempty"`
	// haltAfterRestore leaves the restored machine stopped.
	// +optional
	HaltAfterRestore bool `json:"haltAfterRestore,omitempty"`
}

// VirtualMachineRestoreStatus says how far the restore is.
type VirtualMachineRestoreStatus struct {
	// restores has the disks.
	// +optional
	// +listType=atomic
	VolumeRestores []VolumeRestore `json:"restores,omitempty"`
	// restoreTime is when the restore was complete.
	// +optional
	// +nullable
	RestoreTime *metav1.Time `json:"restoreTime,omitempty"`
	// complete is true when the machine is there, and runs unless it is to stay stopped.
	// +optional
	Complete *bool `json:"complete,omitempty"`
	// conditions are Ready and InProgress.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
	// deletedVolumes are the claims of the replaced machine that are deleted, by their names.
	// +optional
	// +listType=atomic
	DeletedVolumes []string `json:"deletedVolumes,omitempty"`
	// targetUID is the UID of the machine that was made or replaced, once it was.
	// +optional
	TargetUID *types.UID `json:"targetUID,omitempty"`
	// progress is how much of all disks is restored, in percent; 100 when the restore is complete.
	// +optional
	Progress int `json:"progress,omitempty"`
	// backupUID is the UID of the backup that is restored.
	// +optional
	BackupUID types.UID `json:"backupUID,omitempty"`
	// excludedVolumes has the volumes that the machine had and the restored one does not have: the user leaves them out, or
	// they are not in the backup, and their claims are another machine's.
	// +optional
	// +listType=map
	// +listMapKey=name
	ExcludedVolumes []ExcludedVolume `json:"excludedVolumes,omitempty"`
	// definitionDownload is the name of the DataDownload that reads the machine's Secrets and ConfigMaps back, in the
	// location's namespace. It is absent if the machine refers to none.
	// +optional
	DefinitionDownload string `json:"definitionDownload,omitempty"`
	// references has the Secrets and ConfigMaps that the machine refers to and that were stored with it.
	// +optional
	// +listType=atomic
	References []RestoredReference `json:"references,omitempty"`
	// location is the BackupStorageLocation that it is restored from.
	// +optional
	Location *LocationReference `json:"location,omitempty"`
	// replaced is the machine that is replaced, as it was when the restore began.
	// +optional
	Replaced *ReplacedMachine `json:"replaced,omitempty"`
}

// ReplacedMachine is a machine that a restore replaces.
type ReplacedMachine struct {
	// uid is its UID. A machine that has the name and another UID is left as it is.
	UID types.UID `json:"uid"`
	// claims are those of its volumes.
	// +optional
	// +listType=atomic
	Claims []ReplacedClaim `json:"claims,omitempty"`
	// waitingSince is when the disks were restored, and the restore began to wait for the machine to be stopped.
	// +optional
	// +nullable
	WaitingSince *metav1.Time `json:"waitingSince,omitempty"`
	// replacedTime is when the machine got the spec of the backup.
	// +optional
	// +nullable
	ReplacedTime *metav1.Time `json:"replacedTime,omitempty"`
}

// ReplacedClaim is the claim of a volume of a machine that is replaced.
type ReplacedClaim struct {
	// name is its name.
	Name string `json:"name"`
	// uid is its UID. A claim that has the name and another UID is left as it is.
	UID types.UID `json:"uid"`
}

// RestoredReference is a Secret or a ConfigMap that the restored machine refers to.
type RestoredReference struct {
	// kind is Secret or ConfigMap.
	Kind string `json:"kind"`
	// name is its name in the backup.
	Name string `json:"name"`
	// restoredAs is its name in the restore's namespace. It is another one if something else has the name.
	RestoredAs string `json:"restoredAs"`
	// found is true if it was there, with what was stored.
	// +optional
	Found bool `json:"found,omitempty"`
}

// VolumeRestore is a disk that is restored.
type VolumeRestore struct {
	// volumeName is the name of the machine's volume.
	VolumeName string `json:"volumeName,omitempty"`
	// persistentVolumeClaimSpec is the new claim.
	PersistentVolumeClaim PersistentVolumeClaimSourceSpec `json:"persistentVolumeClaimSpec,omitempty"`
	// volumeBackupName is the name of the disk in the backup.
	VolumeBackupName string `json:"volumeBackupName,omitempty"`
	// progress is how much of the disk is restored, in percent.
	// +optional
	Progress int `json:"progress,omitempty"`
	// volumeSize is the size of the disk in bytes.
	// +optional
	VolumeSize int64 `json:"volumeSize,omitempty"`
	// dataDownload is the name of the DataDownload that restores the disk, in the location's namespace.
	// +optional
	DataDownload string `json:"dataDownload,omitempty"`
	// snapshotID says where in the location the disk is.
	// +optional
	SnapshotID string `json:"snapshotID,omitempty"`
}

// IsComplete says whether the machine is there.
func (r *VirtualMachineRestore) IsComplete() bool {
	return r.Status.Complete != nil && *r.Status.Complete
}

// HasFailed says whether the restore has ended without a machine.
func (r *VirtualMachineRestore) HasFailed() bool {
	for _, c := range r.Status.Conditions {
		if c.Type == ConditionProgressing {
			return c.Status == corev1.ConditionFalse && c.Reason == ReasonError
		}
	}
	return false
}
