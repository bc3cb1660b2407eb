package v1beta2

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ReportTimeout is how long the controller waits, by its own clock, until a store's next report counts as missing.
const ReportTimeout = 3 * time.Minute

// States of an InstanceManager.
const (
	ManagerRunning = "running"
	ManagerUnknown = "unknown" // its report is missing
)

// InstanceManager is what the store of a node reports. It has the name of the Kubernetes node.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=lhim,categories=all
// +kubebuilder:metadata:labels="app.kubernetes.io/part-of=varve"
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="STATE",type=string,JSONPath=`.status.currentState`
// +kubebuilder:printcolumn:name="NODE",type=string,JSONPath=`.spec.nodeID`
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
type InstanceManager struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec InstanceManagerSpec `json:"spec"`
	// +optional
	Status InstanceManagerStatus `json:"status,omitempty"`
}

// InstanceManagerList is a list of InstanceManagers.
//
// +kubebuilder:object:root=true
type InstanceManagerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []InstanceManager `json:"items"`
}

// InstanceManagerSpec says whose store it is.
type InstanceManagerSpec struct {
	// nodeID is the Kubernetes node.
	NodeID string `json:"nodeID"`
	// dataEngine is v2.
	// +kubebuilder:default=v2
	// +optional
	DataEngine DataEngine `json:"dataEngine,omitempty"`
}

// InstanceManagerStatus is what the store reports.
type InstanceManagerStatus struct {
	// currentState is running, or unknown if the store has not reported for three minutes.
	// +optional
	CurrentState string `json:"currentState,omitempty"`
	// ip is the address at which other stores read copies of images.
	// +optional
	IP string `json:"ip,omitempty"`
	// heartbeatTime is when the store reported last, by the clock of its node. If it has not changed for three minutes,
	// the report counts as missing.
	// +optional
	HeartbeatTime *metav1.MicroTime `json:"heartbeatTime,omitempty"`
	// backingImages are the copies of images on the node's disks. The key is <disk UUID>/<image UUID>.
	// +optional
	BackingImages map[string]BackingImageV2CopyInfo `json:"backingImages,omitempty"`
}

// BackingImageV2CopyInfo is a copy of an image on a disk.
type BackingImageV2CopyInfo struct {
	// name is the image's.
	Name string `json:"name"`
	// uuid is status.uuid of the image.
	UUID string `json:"uuid"`
	// diskUUID is the disk.
	DiskUUID string `json:"diskUUID"`
	// size is how many bytes the image has, or 0 as long as that is not known.
	// +optional
	Size int64 `json:"size"`
	// realSize is how many bytes the copy takes on its disk.
	// +optional
	RealSize int64 `json:"realSize,omitempty"`
	// progress is how much of the copy is there, in percent.
	// +optional
	Progress int `json:"progress"`
	// state is pending, in-progress, ready or failed.
	State BackingImageState `json:"state"`
	// currentChecksum is the SHA-512 of the copy as it was read back.
	// +optional
	CurrentChecksum string `json:"currentChecksum,omitempty"`
	// piecesChecksum is the SHA-256 of the SHA-256 of each MiB of the copy, one after the other.
	// +optional
	PiecesChecksum string `json:"piecesChecksum,omitempty"`
	// refusedChecksum is spec.checksum of the image as it was when the first copy failed because it did not match.
	// +optional
	RefusedChecksum string `json:"refusedChecksum,omitempty"`
	// diskFull is true if the copy failed because the disk has too little space for it.
	// +optional
	DiskFull bool `json:"diskFull,omitempty"`
	// message says why the copy failed, or what it waits for.
	// +optional
	Message string `json:"message,omitempty"`
}
