package v2alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
)

// Types of snapshots, for DataUploadSpec.SnapshotType.
const (
	// SnapshotCSI is a VolumeSnapshot of a CSI driver; csiSnapshot says which.
	SnapshotCSI = "CSI"
	// SnapshotMachineBackup is one disk of a VirtualMachineBackup (backup.kubevirt.io) in pull mode: the blocks of a running
	// machine that changed. dataMoverConfig says which.
	SnapshotMachineBackup = "VirtualMachineBackup"
	// SnapshotImage is an image (BackingImage of longhorn.io), which never changes: the claim in sourceNamespace is read
	// where it is. The BackupBackingImage that owns both makes the DataUpload.
	SnapshotImage = "BackingImage"
)

// DataUpload asks a data mover to put a snapshot of a volume into the repository of a backup storage location.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=du,categories=all
// +kubebuilder:metadata:labels="app.kubernetes.io/part-of=varve"
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.phase`,description="State of the DataUpload, such as New or InProgress"
// +kubebuilder:printcolumn:name="Started",type=date,JSONPath=`.status.startTimestamp`,description="Time since the DataUpload was started"
// +kubebuilder:printcolumn:name="Bytes Done",type=integer,format=int64,JSONPath=`.status.progress.bytesDone`,description="Bytes that were moved"
// +kubebuilder:printcolumn:name="Total Bytes",type=integer,format=int64,JSONPath=`.status.progress.totalBytes`,description="Bytes that are to be moved"
// +kubebuilder:printcolumn:name="Incremental Bytes",type=integer,format=int64,JSONPath=`.status.incrementalBytes`,description="Bytes that were new or changed since the last backup",priority=10
// +kubebuilder:printcolumn:name="Storage Location",type=string,JSONPath=`.spec.backupStorageLocation`,description="BackupStorageLocation that the data goes to"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`,description="Time since the DataUpload was created"
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.status.node`,description="Node where the data is moved"
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.message`,description="What it waits for, or why it failed",priority=1
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.spec) || has(self.spec)",message="spec is immutable, except for cancel: create another DataUpload"
type DataUpload struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec DataUploadSpec `json:"spec,omitempty"`
	// +optional
	Status DataUploadStatus `json:"status,omitempty"`
}

// DataUploadList is a list of DataUploads.
//
// +kubebuilder:object:root=true
type DataUploadList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []DataUpload `json:"items"`
}

// DataUploadSpec says what is moved, by which data mover, and where to.
//
// Mover pods and snapshots are made from it. What clients send for a field that is not set differs, and counts as the same.
//
// +kubebuilder:validation:XValidation:rule="self.snapshotType == oldSelf.snapshotType && has(self.csiSnapshot) == has(oldSelf.csiSnapshot) && self.sourcePVC == oldSelf.sourcePVC && (!has(self.datamover) || self.datamover == \"\") == (!has(oldSelf.datamover) || oldSelf.datamover == \"\") && (!has(self.datamover) || !has(oldSelf.datamover) || self.datamover == oldSelf.datamover) && self.backupStorageLocation == oldSelf.backupStorageLocation && self.sourceNamespace == oldSelf.sourceNamespace && (has(self.dataMoverConfig) ? size(self.dataMoverConfig) : 0) == (has(oldSelf.dataMoverConfig) ? size(oldSelf.dataMoverConfig) : 0) && (!has(self.dataMoverConfig) || !has(oldSelf.dataMoverConfig) || self.dataMoverConfig == oldSelf.dataMoverConfig) && (self.operationTimeout == oldSelf.operationTimeout || duration(self.operationTimeout) == duration(oldSelf.operationTimeout))",message="spec is immutable, except for cancel: create another DataUpload"
// +kubebuilder:validation:XValidation:rule="!oldSelf.?cancel.orValue(false) || self.?cancel.orValue(false)",message="cancel cannot be taken back",fieldPath=".cancel"
type DataUploadSpec struct {
	// snapshotType is CSI, or one of those that Varve's movers serve beside it: VirtualMachineBackup and BackingImage.
	SnapshotType string `json:"snapshotType"`
	// csiSnapshot is the snapshot if snapshotType is CSI.
	// +optional
	// +nullable
	CSISnapshot *CSISnapshotSpec `json:"csiSnapshot,omitempty"`
	// sourcePVC is the claim that the snapshot is of, in sourceNamespace.
	SourcePVC string `json:"sourcePVC"`
	// datamover is the data mover that serves the object; "" and velero are the built-in one.
	// +optional
	DataMover string `json:"datamover,omitempty"`
	// backupStorageLocation is the BackupStorageLocation that the data goes to, in the namespace of the DataUpload.
	BackupStorageLocation string `json:"backupStorageLocation"`
	// sourceNamespace is the namespace of the claim and of the snapshot.
	SourceNamespace string `json:"sourceNamespace"`
	// dataMoverConfig is for the data mover alone.
	// +optional
	// +nullable
	DataMoverConfig map[string]string `json:"dataMoverConfig,omitempty"`
	// cancel asks to end the DataUpload. It cannot be taken back.
	// +optional
	Cancel bool `json:"cancel,omitempty"`
	// operationTimeout bounds each wait of the data mover, such as that for the snapshot to be ready.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=64
	OperationTimeout velerov1.Duration `json:"operationTimeout"`
}

// CSISnapshotSpec is a snapshot by a CSI driver.
//
// +kubebuilder:validation:XValidation:rule="self.volumeSnapshot == oldSelf.volumeSnapshot && self.storageClass == oldSelf.storageClass && (!has(self.snapshotClass) || self.snapshotClass == \"\") == (!has(oldSelf.snapshotClass) || oldSelf.snapshotClass == \"\") && (!has(self.snapshotClass) || !has(oldSelf.snapshotClass) || self.snapshotClass == oldSelf.snapshotClass) && (!has(self.driver) || self.driver == \"\") == (!has(oldSelf.driver) || oldSelf.driver == \"\") && (!has(self.driver) || !has(oldSelf.driver) || self.driver == oldSelf.driver)",message="spec is immutable, except for cancel: create another DataUpload"
type CSISnapshotSpec struct {
	// volumeSnapshot is the VolumeSnapshot, in sourceNamespace.
	VolumeSnapshot string `json:"volumeSnapshot"`
	// storageClass is the StorageClass of the claim that the snapshot is of.
	StorageClass string `json:"storageClass"`
	// snapshotClass is the VolumeSnapshotClass of the snapshot.
	// +optional
	SnapshotClass string `json:"snapshotClass,omitempty"`
	// driver is the CSI driver.
	// +optional
	Driver string `json:"driver,omitempty"`
}

// DataUploadStatus is what a data mover says about a DataUpload.
type DataUploadStatus struct {
	// phase is where the DataUpload stands; absent: New.
	// +optional
	Phase Phase `json:"phase,omitempty"`
	// path is the path or the device of the volume in the mover pod.
	// +optional
	Path string `json:"path,omitempty"`
	// snapshotID says where the data is. A restore needs nothing else.
	// +optional
	SnapshotID string `json:"snapshotID,omitempty"`
	// dataMoverResult has more about the result. A restore does not get it.
	// +optional
	// +nullable
	DataMoverResult map[string]string `json:"dataMoverResult,omitempty"`
	// message says what the DataUpload waits for and until when, or why it failed and what to do.
	// +optional
	Message string `json:"message,omitempty"`
	// startTimestamp is when data began to move.
	// +optional
	// +nullable
	StartTimestamp *metav1.Time `json:"startTimestamp,omitempty"`
	// completionTimestamp is when the DataUpload ended, in whatever way.
	// +optional
	// +nullable
	CompletionTimestamp *metav1.Time `json:"completionTimestamp,omitempty"`
	// progress is how much was moved.
	// +optional
	Progress Progress `json:"progress,omitempty"`
	// incrementalBytes is how many bytes were new or changed since the last backup.
	// +optional
	IncrementalBytes int64 `json:"incrementalBytes,omitempty"`
	// node is the node of the mover pod.
	// +optional
	Node string `json:"node,omitempty"`
	// nodeOS is the operating system of that node.
	// +optional
	NodeOS NodeOS `json:"nodeOS,omitempty"`
	// acceptedByNode is the node that took the DataUpload.
	// +optional
	AcceptedByNode string `json:"acceptedByNode,omitempty"`
	// acceptedTimestamp is when it did.
	// +optional
	// +nullable
	AcceptedTimestamp *metav1.Time `json:"acceptedTimestamp,omitempty"`
}
