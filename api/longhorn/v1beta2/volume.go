package v1beta2

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// States of volumes, and the state of a volume whose disk is there.
const (
	VolumeCreating = "creating"
	VolumeAttached = "attached"
	VolumeDetached = "detached"
	VolumeDeleting = "deleting"

	RobustnessHealthy = "healthy"
	RobustnessFaulted = "faulted"
	RobustnessUnknown = "unknown"
)

// Volume is a volume of the CSI driver store.varvebackup.io. It has the name of the PersistentVolume. The driver makes
// and deletes it.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=lhv,categories=all
// +kubebuilder:metadata:labels="app.kubernetes.io/part-of=varve"
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="STATE",type=string,JSONPath=`.status.state`
// +kubebuilder:printcolumn:name="ROBUSTNESS",type=string,JSONPath=`.status.robustness`
// +kubebuilder:printcolumn:name="SIZE",type=string,JSONPath=`.spec.size`
// +kubebuilder:printcolumn:name="NODE",type=string,JSONPath=`.status.currentNodeID`
// +kubebuilder:printcolumn:name="IMAGE",type=string,JSONPath=`.spec.backingImage`
// +kubebuilder:printcolumn:name="CLAIM",type=string,JSONPath=`.status.kubernetesStatus.pvcName`
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
type Volume struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec VolumeSpec `json:"spec"`
	// +optional
	Status VolumeStatus `json:"status,omitempty"`
}

// VolumeList is a list of Volumes.
//
// +kubebuilder:object:root=true
type VolumeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Volume `json:"items"`
}

// VolumeSpec is what a volume is.
type VolumeSpec struct {
	// size is how many bytes the volume has, as a text of digits.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[0-9]+$`
	Size int64 `json:"size,string"`
	// dataEngine is v2.
	// +kubebuilder:default=v2
	// +optional
	DataEngine DataEngine `json:"dataEngine,omitempty"`
	// backingImage is the image that the volume was cloned from.
	// +optional
	BackingImage string `json:"backingImage,omitempty"`
	// dataSource is what the volume was cloned from: snap:// and the handle of a snapshot, or vol:// and a volume.
	// +kubebuilder:validation:MaxLength=256
	// +optional
	DataSource string `json:"dataSource,omitempty"`
	// numberOfReplicas is 1.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1
	// +kubebuilder:default=1
	// +optional
	NumberOfReplicas int `json:"numberOfReplicas,omitempty"`
	// diskSelector are tags that the replica's disk has to have.
	// +optional
	DiskSelector []string `json:"diskSelector,omitempty"`
	// nodeSelector are tags that the replica's node has to have.
	// +optional
	NodeSelector []string `json:"nodeSelector,omitempty"`
}

// VolumeStatus says where a volume is.
type VolumeStatus struct {
	// state is creating, attached, detached or deleting.
	// +optional
	State string `json:"state,omitempty"`
	// robustness is healthy, faulted if its data is not on the disk, or unknown if the node's store does not report.
	// +optional
	Robustness string `json:"robustness,omitempty"`
	// currentNodeID is the node that it is attached to.
	// +optional
	CurrentNodeID string `json:"currentNodeID,omitempty"`
	// kubernetesStatus names the volume's objects in Kubernetes.
	// +optional
	KubernetesStatus KubernetesStatus `json:"kubernetesStatus,omitempty"`
}

// KubernetesStatus names a volume's objects in Kubernetes.
type KubernetesStatus struct {
	// pvName is the PersistentVolume.
	// +optional
	PVName string `json:"pvName,omitempty"`
	// namespace is that of the claim.
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// pvcName is the claim that it was made for.
	// +optional
	PVCName string `json:"pvcName,omitempty"`
}

// Replica is a volume's data on a disk.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=lhr,categories=all
// +kubebuilder:metadata:labels="app.kubernetes.io/part-of=varve"
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="STATE",type=string,JSONPath=`.status.currentState`
// +kubebuilder:printcolumn:name="VOLUME",type=string,JSONPath=`.spec.volumeName`
// +kubebuilder:printcolumn:name="NODE",type=string,JSONPath=`.spec.nodeID`
// +kubebuilder:printcolumn:name="DISK",type=string,JSONPath=`.spec.diskID`
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
type Replica struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec ReplicaSpec `json:"spec"`
	// +optional
	Status ReplicaStatus `json:"status,omitempty"`
}

// ReplicaList is a list of Replicas.
//
// +kubebuilder:object:root=true
type ReplicaList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Replica `json:"items"`
}

// ReplicaSpec says where the data is.
type ReplicaSpec struct {
	// volumeName is the volume.
	VolumeName string `json:"volumeName"`
	// volumeSize is the volume's size in bytes, as a text of digits.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[0-9]+$`
	VolumeSize int64 `json:"volumeSize,string"`
	// dataEngine is v2.
	// +kubebuilder:default=v2
	// +optional
	DataEngine DataEngine `json:"dataEngine,omitempty"`
	// nodeID is the Kubernetes node.
	NodeID string `json:"nodeID"`
	// diskID is the UUID of the disk.
	DiskID string `json:"diskID"`
	// backingImage is the image that the data was cloned from.
	// +optional
	BackingImage string `json:"backingImage,omitempty"`
}

// ReplicaStatus says what became of it.
type ReplicaStatus struct {
	// currentState is starting until the data is there, then stopped, running while the volume is attached, or error if
	// the disk does not have the data.
	// +optional
	CurrentState string `json:"currentState,omitempty"`
	// message says what it waits for, or what is wrong.
	// +optional
	Message string `json:"message,omitempty"`
}

// States of replicas.
const (
	ReplicaStarting = "starting"
	ReplicaStopped  = "stopped"
	ReplicaRunning  = "running"
	ReplicaError    = "error"
)
