package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DeleteBackupRequest asks to delete a backup, with all that was stored for it.
//
// +kubebuilder:object:root=true
// +kubebuilder:metadata:labels="app.kubernetes.io/part-of=varve"
// +kubebuilder:printcolumn:name="BackupName",type=string,JSONPath=`.spec.backupName`,description="Backup that is to be deleted"
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.phase`,description="State of the deletion"
type DeleteBackupRequest struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec DeleteBackupRequestSpec `json:"spec,omitempty"`
	// +optional
	Status DeleteBackupRequestStatus `json:"status,omitempty"`
}

// DeleteBackupRequestList is a list of DeleteBackupRequests.
//
// +kubebuilder:object:root=true
type DeleteBackupRequestList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []DeleteBackupRequest `json:"items"`
}

// DeleteBackupRequestSpec says which backup is to be deleted.
type DeleteBackupRequestSpec struct {
	// backupName is the backup's name.
	BackupName string `json:"backupName"`
}

// DeleteBackupRequestPhase is where a deletion stands.
//
// +kubebuilder:validation:Enum=New;InProgress;Processed
type DeleteBackupRequestPhase string

const (
	// DeletionNew: nobody has looked at it.
	DeletionNew DeleteBackupRequestPhase = "New"
	// DeletionInProgress: the backup is being deleted.
	DeletionInProgress DeleteBackupRequestPhase = "InProgress"
	// DeletionProcessed: it ended; status.errors says what could not be deleted.
	DeletionProcessed DeleteBackupRequestPhase = "Processed"
)

// DeleteBackupRequestStatus is the observed state of a deletion.
type DeleteBackupRequestStatus struct {
	// phase is where the deletion stands.
	// +optional
	Phase DeleteBackupRequestPhase `json:"phase,omitempty"`
	// errors are what went wrong.
	// +optional
	// +nullable
	Errors []string `json:"errors,omitempty"`
}
