package v1beta1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// VirtualMachineSnapshotContent is what a VirtualMachineSnapshot consists of.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=vmsnapshotcontent;vmsnapshotcontents,categories=all
// +kubebuilder:metadata:labels="app.kubernetes.io/part-of=varve"
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="ReadyToUse",type=boolean,JSONPath=`.status.readyToUse`
// +kubebuilder:printcolumn:name="CreationTime",type=date,JSONPath=`.status.creationTime`
// +kubebuilder:printcolumn:name="Error",type=string,JSONPath=`.status.error.message`
type VirtualMachineSnapshotContent struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec VirtualMachineSnapshotContentSpec `json:"spec"`
	// +optional
	Status *VirtualMachineSnapshotContentStatus `json:"status,omitempty"`
}

// VirtualMachineSnapshotContentList is a list of VirtualMachineSnapshotContents.
//
// +kubebuilder:object:root=true
type VirtualMachineSnapshotContentList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []VirtualMachineSnapshotContent `json:"items"`
}

// VirtualMachineSnapshotContentSpec has the machine and the storage's snapshots.
type VirtualMachineSnapshotContentSpec struct {
	// virtualMachineSnapshotName is the VirtualMachineSnapshot that this is the content of.
	// +optional
	VirtualMachineSnapshotName *string `json:"virtualMachineSnapshotName,omitempty"`
	// source is the machine as it was.
	Source SourceSpec `json:"source"`
	// volumeBackups has the volumes of the machine, and the storage's snapshots of them.
	// +optional
	// +listType=atomic
	VolumeBackups []VolumeBackup `json:"volumeBackups,omitempty"`
}

// SourceSpec is what a snapshot is of.
type SourceSpec struct {
	// virtualMachine is the VirtualMachine as it was: its metadata and its spec.
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	// +optional
	VirtualMachine *runtime.RawExtension `json:"virtualMachine,omitempty"`
}

// PersistentVolumeClaim is a claim as it was.
type PersistentVolumeClaim struct {
	// metadata is the claim's metadata.
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec is the claim's spec.
	// +optional
	Spec corev1.PersistentVolumeClaimSpec `json:"spec,omitempty"`
}

// VolumeBackup is a volume of the machine in the snapshot.
type VolumeBackup struct {
	// volumeName is the volume's name.
	VolumeName string `json:"volumeName"`
	// persistentVolumeClaim is the volume's claim as it was.
	PersistentVolumeClaim PersistentVolumeClaim `json:"persistentVolumeClaim"`
	// volumeSnapshotName is the VolumeSnapshot of the claim.
	// +optional
	VolumeSnapshotName *string `json:"volumeSnapshotName,omitempty"`
}

// VirtualMachineSnapshotContentStatus says how far the storage's snapshots are.
type VirtualMachineSnapshotContentStatus struct {
	// creationTime is when the last of them was taken.
	// +optional
	// +nullable
	CreationTime *metav1.Time `json:"creationTime,omitempty"`
	// readyToUse is true when all of them can be used.
	// +optional
	ReadyToUse *bool `json:"readyToUse,omitempty"`
	// error is the first failure.
	// +optional
	Error *Error `json:"error,omitempty"`
	// volumeSnapshotStatus has each of them.
	// +optional
	// +listType=atomic
	VolumeSnapshotStatus []VolumeSnapshotStatus `json:"volumeSnapshotStatus,omitempty"`
}

// VolumeSnapshotStatus says how far a VolumeSnapshot is.
type VolumeSnapshotStatus struct {
	// volumeSnapshotName is the VolumeSnapshot's name.
	VolumeSnapshotName string `json:"volumeSnapshotName"`
	// creationTime is when it was taken.
	// +optional
	// +nullable
	CreationTime *metav1.Time `json:"creationTime,omitempty"`
	// readyToUse is true when it can be used.
	// +optional
	ReadyToUse *bool `json:"readyToUse,omitempty"`
	// error says why it could not be made.
	// +optional
	Error *Error `json:"error,omitempty"`
}
