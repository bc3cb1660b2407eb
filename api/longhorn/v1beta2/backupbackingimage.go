package v1beta2

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// BackupState says how far the backup of an image is.
type BackupState string

// The states of an image's backup.
const (
	// BackupPending: it waits for its image or for a location.
	BackupPending BackupState = "Pending"
	// BackupInProgress: the image is being stored.
	BackupInProgress BackupState = "InProgress"
	// BackupCompleted: status.snapshotID names the restore point.
	BackupCompleted BackupState = "Completed"
	// BackupError: it failed, and is not tried again. status.error says why.
	BackupError BackupState = "Error"
)

// Ended reports whether nothing more is done.
func (s BackupState) Ended() bool { return s == BackupCompleted || s == BackupError }

// BackupBackingImage is the backup of an image in a repository. It is deleted with its restore point.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=lhbbi,categories=all
// +kubebuilder:metadata:labels="app.kubernetes.io/part-of=varve"
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="IMAGE",type=string,JSONPath=`.spec.backingImage`
// +kubebuilder:printcolumn:name="LOCATION",type=string,JSONPath=`.status.location`
// +kubebuilder:printcolumn:name="STATE",type=string,JSONPath=`.status.state`
// +kubebuilder:printcolumn:name="PROGRESS",type=integer,JSONPath=`.status.progress`
// +kubebuilder:printcolumn:name="SIZE",type=integer,JSONPath=`.status.size`
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="MESSAGE",type=string,JSONPath=`.status.message`,priority=1
type BackupBackingImage struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec BackupBackingImageSpec `json:"spec"`
	// +optional
	Status BackupBackingImageStatus `json:"status,omitempty"`
}

// BackupBackingImageList is a list of BackupBackingImages.
//
// +kubebuilder:object:root=true
type BackupBackingImageList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []BackupBackingImage `json:"items"`
}

// BackupBackingImageSpec says which image is stored, and where.
//
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="spec cannot change: make another BackupBackingImage"
type BackupBackingImageSpec struct {
	// backingImage is the image.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	BackingImage string `json:"backingImage"`
	// backupTargetName is the BackupStorageLocation, in the same namespace. Default: the one with spec.default.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	BackupTargetName string `json:"backupTargetName,omitempty"`
}

// BackupBackingImageStatus says how far the backup is.
type BackupBackingImageStatus struct {
	// state is Pending, InProgress, Completed or Error.
	// +optional
	State BackupState `json:"state,omitempty"`
	// progress is how much of the image is stored, in percent.
	// +optional
	Progress int `json:"progress"`
	// message says what it waits for.
	// +optional
	Message string `json:"message,omitempty"`
	// error says why the backup failed, and what to do.
	// +optional
	Error string `json:"error,omitempty"`
	// location is the BackupStorageLocation that the image is stored in.
	// +optional
	Location string `json:"location,omitempty"`
	// imageUUID is status.uuid of the image that is stored.
	// +optional
	ImageUUID string `json:"imageUUID,omitempty"`
	// size is how many bytes the image has.
	// +optional
	Size int64 `json:"size,omitempty"`
	// checksum is the SHA-512 of the image in hexadecimal. An image that is restored from the backup must have it.
	// +optional
	Checksum string `json:"checksum,omitempty"`
	// snapshotID names the restore point, for the parameter snapshot-id of an image with sourceType restore.
	// +optional
	SnapshotID string `json:"snapshotID,omitempty"`
	// backupCreatedAt is when the image was stored.
	// +optional
	// +nullable
	BackupCreatedAt *metav1.Time `json:"backupCreatedAt,omitempty"`
}

// BackupBackingImageFinalizer is on the backup of an image while its restore point, or what was made for it, is there.
const BackupBackingImageFinalizer = "longhorn.io"
