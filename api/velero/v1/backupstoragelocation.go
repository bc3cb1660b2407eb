package v1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// BackupStorageLocation is a place that backups go to: a bucket on an S3 service, or a directory.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=bsl,categories=all
// +kubebuilder:metadata:labels="app.kubernetes.io/part-of=varve"
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`,description="Available or Unavailable"
// +kubebuilder:printcolumn:name="Last Validated",type=date,JSONPath=`.status.lastValidationTime`,description="When the location was last tried"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Default",type=boolean,JSONPath=`.spec.default`,description="Whether it is used where none is named"
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.message`,priority=1
type BackupStorageLocation struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec BackupStorageLocationSpec `json:"spec,omitempty"`
	// +optional
	Status BackupStorageLocationStatus `json:"status,omitempty"`
}

// BackupStorageLocationList is a list of BackupStorageLocations.
//
// +kubebuilder:object:root=true
type BackupStorageLocationList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []BackupStorageLocation `json:"items"`
}

// Access modes of a location.
const (
	// AccessReadOnly: nothing is written, and nothing is deleted.
	AccessReadOnly BackupStorageLocationAccessMode = "ReadOnly"
	// AccessReadWrite is the default.
	AccessReadWrite BackupStorageLocationAccessMode = "ReadWrite"
)

// BackupStorageLocationAccessMode says what may be done in a location.
//
// +kubebuilder:validation:Enum=ReadOnly;ReadWrite
type BackupStorageLocationAccessMode string

// BackupStorageLocationPhase says whether a location can be used.
//
// +kubebuilder:validation:Enum=Available;Unavailable
// +kubebuilder:default=Unavailable
type BackupStorageLocationPhase string

const (
	// LocationAvailable: it answered when it was last tried.
	LocationAvailable BackupStorageLocationPhase = "Available"
	// LocationUnavailable: it did not; status.message says why.
	LocationUnavailable BackupStorageLocationPhase = "Unavailable"
)

// BackupStorageLocationSpec says where backups go, and how it is reached.
type BackupStorageLocationSpec struct {
	// provider is aws for everything that speaks S3.
	Provider string `json:"provider"`
	// config is for the provider.
	// +optional
	Config map[string]string `json:"config,omitempty"`
	// credential is the key of a Secret in the location's namespace.
	// +optional
	Credential *corev1.SecretKeySelector `json:"credential,omitempty"`

	StorageType `json:",inline"`

	// default makes it the location that is used where none is named.
	// +optional
	Default bool `json:"default,omitempty"`
	// accessMode is ReadWrite, which is the default, or ReadOnly.
	// +optional
	AccessMode BackupStorageLocationAccessMode `json:"accessMode,omitempty"`
	// backupSyncPeriod is how often backups in it are looked for that are not in the cluster; 0: never.
	// +optional
	// +nullable
	BackupSyncPeriod *Duration `json:"backupSyncPeriod,omitempty"`
	// validationFrequency is how often it is tried; 0: never.
	// +optional
	// +nullable
	ValidationFrequency *Duration `json:"validationFrequency,omitempty"`
}

// StorageType has one field for each type of storage.
type StorageType struct {
	// objectStorage is a bucket.
	ObjectStorage *ObjectStorageLocation `json:"objectStorage"`
}

// ObjectStorageLocation is a part of a bucket.
type ObjectStorageLocation struct {
	// bucket is the bucket's name.
	Bucket string `json:"bucket"`
	// prefix begins the names of all objects.
	// +optional
	Prefix string `json:"prefix,omitempty"`
	// caCert is the certificates of the authorities to trust, in PEM; deprecated by caCertRef.
	// +optional
	CACert []byte `json:"caCert,omitempty"`
	// caCertRef is the key of a Secret, in the location's namespace, with the certificates of the authorities to trust, in PEM.
	// +optional
	CACertRef *corev1.SecretKeySelector `json:"caCertRef,omitempty"`
}

// BackupStorageLocationStatus is the observed state of a location.
type BackupStorageLocationStatus struct {
	// phase says whether it can be used.
	// +optional
	Phase BackupStorageLocationPhase `json:"phase,omitempty"`
	// lastSyncedTime is when backups in it were last looked for.
	// +optional
	// +nullable
	LastSyncedTime *metav1.Time `json:"lastSyncedTime,omitempty"`
	// lastValidationTime is when it was last tried.
	// +optional
	// +nullable
	LastValidationTime *metav1.Time `json:"lastValidationTime,omitempty"`
	// message says why it cannot be used, and what to do.
	// +optional
	Message string `json:"message,omitempty"`
	// lastSyncedRevision is not used; Velero keeps it for older clients.
	// +optional
	LastSyncedRevision types.UID `json:"lastSyncedRevision,omitempty"`
	// accessMode is not used; Velero keeps it for older clients.
	// +optional
	AccessMode BackupStorageLocationAccessMode `json:"accessMode,omitempty"`
}
