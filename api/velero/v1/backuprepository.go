package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RepositoryKopia is the format of every repository that Varve writes.
const RepositoryKopia = "kopia"

// BackupRepository is the repository that holds the volumes of one namespace in one backup storage location.
//
// +kubebuilder:object:root=true
// +kubebuilder:metadata:labels="app.kubernetes.io/part-of=varve"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Repository Type",type=string,JSONPath=`.spec.repositoryType`
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Last Maintenance",type=date,JSONPath=`.status.lastMaintenanceTime`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.message`,priority=1
type BackupRepository struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec BackupRepositorySpec `json:"spec,omitempty"`
	// +optional
	Status BackupRepositoryStatus `json:"status,omitempty"`
}

// BackupRepositoryList is a list of BackupRepositories.
//
// +kubebuilder:object:root=true
type BackupRepositoryList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []BackupRepository `json:"items"`
}

// BackupRepositorySpec says whose repository it is, and where.
type BackupRepositorySpec struct {
	// volumeNamespace is the namespace whose volumes it holds.
	VolumeNamespace string `json:"volumeNamespace"`
	// backupStorageLocation is the BackupStorageLocation that it is in.
	BackupStorageLocation string `json:"backupStorageLocation"`
	// repositoryType is kopia, or restic for repositories of Velero's that Varve does not serve.
	// +optional
	// +kubebuilder:validation:Enum=kopia;restic;""
	RepositoryType string `json:"repositoryType"`
	// resticIdentifier belongs to restic.
	// +optional
	ResticIdentifier string `json:"resticIdentifier,omitempty"`
	// maintenanceFrequency is how often maintenance is to run; 0: as often as the repository's format needs it.
	MaintenanceFrequency Duration `json:"maintenanceFrequency"`
	// repositoryConfig is for the repository alone.
	// +optional
	// +nullable
	RepositoryConfig map[string]string `json:"repositoryConfig,omitempty"`
}

// BackupRepositoryPhase says whether a repository can be used.
//
// +kubebuilder:validation:Enum=New;Ready;NotReady
type BackupRepositoryPhase string

const (
	// RepositoryNew: nobody has opened it.
	RepositoryNew BackupRepositoryPhase = "New"
	// RepositoryReady: it can be read and written.
	RepositoryReady BackupRepositoryPhase = "Ready"
	// RepositoryNotReady: it cannot; status.message says why.
	RepositoryNotReady BackupRepositoryPhase = "NotReady"
)

// BackupRepositoryStatus is the observed state of a repository.
type BackupRepositoryStatus struct {
	// phase says whether it can be used.
	// +optional
	Phase BackupRepositoryPhase `json:"phase,omitempty"`
	// message says why it cannot, and what to do.
	// +optional
	Message string `json:"message,omitempty"`
	// lastMaintenanceTime is when maintenance last succeeded.
	// +optional
	// +nullable
	LastMaintenanceTime *metav1.Time `json:"lastMaintenanceTime,omitempty"`
	// recentMaintenance is the latest runs of maintenance, the oldest first.
	// +optional
	RecentMaintenance []BackupRepositoryMaintenanceStatus `json:"recentMaintenance,omitempty"`
}

// BackupRepositoryMaintenanceResult says how a run of maintenance ended.
//
// +kubebuilder:validation:Enum=Succeeded;Failed
type BackupRepositoryMaintenanceResult string

const (
	// MaintenanceSucceeded: it did what was due.
	MaintenanceSucceeded BackupRepositoryMaintenanceResult = "Succeeded"
	// MaintenanceFailed: it did not.
	MaintenanceFailed BackupRepositoryMaintenanceResult = "Failed"
)

// BackupRepositoryMaintenanceStatus is one run of maintenance.
type BackupRepositoryMaintenanceStatus struct {
	// result says how it ended.
	// +optional
	Result BackupRepositoryMaintenanceResult `json:"result,omitempty"`
	// startTimestamp is when it began.
	// +optional
	// +nullable
	StartTimestamp *metav1.Time `json:"startTimestamp,omitempty"`
	// completeTimestamp is when it ended.
	// +optional
	// +nullable
	CompleteTimestamp *metav1.Time `json:"completeTimestamp,omitempty"`
	// message says why it failed.
	// +optional
	Message string `json:"message,omitempty"`
}
