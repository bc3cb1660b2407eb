package v2alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
)

// DataDownload asks a data mover to make a volume from the repository of a backup storage location, and to give it to a claim.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=dd,categories=all
// +kubebuilder:metadata:labels="app.kubernetes.io/part-of=varve"
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.phase`,description="State of the DataDownload, such as New or InProgress"
// +kubebuilder:printcolumn:name="Started",type=date,JSONPath=`.status.startTimestamp`,description="Time since the DataDownload was started"
// +kubebuilder:printcolumn:name="Bytes Done",type=integer,format=int64,JSONPath=`.status.progress.bytesDone`,description="Bytes that were moved"
// +kubebuilder:printcolumn:name="Total Bytes",type=integer,format=int64,JSONPath=`.status.progress.totalBytes`,description="Bytes that are to be moved"
// +kubebuilder:printcolumn:name="Storage Location",type=string,JSONPath=`.spec.backupStorageLocation`,description="BackupStorageLocation that the data comes from"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`,description="Time since the DataDownload was created"
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.status.node`,description="Node where the data is moved"
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.message`,description="What it waits for, or why it failed",priority=1
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.spec) || has(self.spec)",message="spec is immutable, except for cancel: create another DataDownload"
type DataDownload struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec DataDownloadSpec `json:"spec,omitempty"`
	// +optional
	Status DataDownloadStatus `json:"status,omitempty"`
}

// DataDownloadList is a list of DataDownloads.
//
// +kubebuilder:object:root=true
type DataDownloadList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []DataDownload `json:"items"`
}

// DataDownloadSpec says what is moved, by which data mover, and where to.
//
// Mover pods and snapshots are made from it. What clients send for a field that is not set differs, and counts as the same.
//
// +kubebuilder:validation:XValidation:rule="self.targetVolume == oldSelf.targetVolume && self.backupStorageLocation == oldSelf.backupStorageLocation && (!has(self.datamover) || self.datamover == \"\") == (!has(oldSelf.datamover) || oldSelf.datamover == \"\") && (!has(self.datamover) || !has(oldSelf.datamover) || self.datamover == oldSelf.datamover) && self.snapshotID == oldSelf.snapshotID && self.sourceNamespace == oldSelf.sourceNamespace && (has(self.dataMoverConfig) ? size(self.dataMoverConfig) : 0) == (has(oldSelf.dataMoverConfig) ? size(oldSelf.dataMoverConfig) : 0) && (!has(self.dataMoverConfig) || !has(oldSelf.dataMoverConfig) || self.dataMoverConfig == oldSelf.dataMoverConfig) && (self.operationTimeout == oldSelf.operationTimeout || duration(self.operationTimeout) == duration(oldSelf.operationTimeout)) && (!has(self.nodeOS) || self.nodeOS == \"\") == (!has(oldSelf.nodeOS) || oldSelf.nodeOS == \"\") && (!has(self.nodeOS) || !has(oldSelf.nodeOS) || self.nodeOS == oldSelf.nodeOS) && self.?snapshotSize.orValue(0) == oldSelf.?snapshotSize.orValue(0)",message="spec is immutable, except for cancel: create another DataDownload"
// +kubebuilder:validation:XValidation:rule="!oldSelf.?cancel.orValue(false) || self.?cancel.orValue(false)",message="cancel cannot be taken back",fieldPath=".cancel"
type DataDownloadSpec struct {
	// targetVolume is the claim that gets the volume.
	TargetVolume TargetVolumeSpec `json:"targetVolume"`
	// backupStorageLocation is the BackupStorageLocation that the data comes from, in the namespace of the DataDownload.
	BackupStorageLocation string `json:"backupStorageLocation"`
	// datamover is the data mover that serves the object; "" and velero are the built-in one.
	// +optional
	DataMover string `json:"datamover,omitempty"`
	// snapshotID is the snapshotID of the DataUpload whose data this is.
	SnapshotID string `json:"snapshotID"`
	// sourceNamespace is the namespace that the volume was backed up from.
	SourceNamespace string `json:"sourceNamespace"`
	// dataMoverConfig is for the data mover alone.
	// +optional
	DataMoverConfig map[string]string `json:"dataMoverConfig,omitempty"`
	// cancel asks to end the DataDownload. It cannot be taken back.
	// +optional
	Cancel bool `json:"cancel,omitempty"`
	// operationTimeout bounds each wait of the data mover, such as that for a volume to be made.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=64
	OperationTimeout velerov1.Duration `json:"operationTimeout"`
	// nodeOS is the operating system of the node that the volume was read on.
	// +optional
	NodeOS NodeOS `json:"nodeOS,omitempty"`
	// snapshotSize is the size of the volume's data in bytes.
	// +optional
	SnapshotSize int64 `json:"snapshotSize,omitempty"`
}

// TargetVolumeSpec is a claim that waits for its volume.
type TargetVolumeSpec struct {
	// pvc is the claim. Its selector keeps it from being bound to any other volume.
	PVC string `json:"pvc"`
	// pv is not used, and may be "".
	PV string `json:"pv"`
	// namespace is the namespace of the claim.
	Namespace string `json:"namespace"`
}

// DataDownloadStatus is what a data mover says about a DataDownload.
type DataDownloadStatus struct {
	// phase is where the DataDownload stands; absent: New.
	// +optional
	Phase Phase `json:"phase,omitempty"`
	// message says what the DataDownload waits for and until when, or why it failed and what to do.
	// +optional
	Message string `json:"message,omitempty"`
	// startTimestamp is when data began to move.
	// +optional
	// +nullable
	StartTimestamp *metav1.Time `json:"startTimestamp,omitempty"`
	// completionTimestamp is when the DataDownload ended, in whatever way.
	// +optional
	// +nullable
	CompletionTimestamp *metav1.Time `json:"completionTimestamp,omitempty"`
	// progress is how much was moved.
	// +optional
	Progress Progress `json:"progress,omitempty"`
	// node is the node of the mover pod.
	// +optional
	Node string `json:"node,omitempty"`
	// acceptedByNode is the node that took the DataDownload.
	// +optional
	AcceptedByNode string `json:"acceptedByNode,omitempty"`
	// acceptedTimestamp is when it did.
	// +optional
	// +nullable
	AcceptedTimestamp *metav1.Time `json:"acceptedTimestamp,omitempty"`
}
