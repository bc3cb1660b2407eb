package v1beta2

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DiskTypeFilesystem is a disk that is a directory on XFS or btrfs.
const DiskTypeFilesystem = "filesystem"

// TagRootFilesystem is a tag of a disk that may be made on the root file system of its node.
const TagRootFilesystem = "root-filesystem"

// AnnotationDeleteOrphans is an annotation of a Node: UUIDs, separated by commas, of images that no BackingImage has,
// and names of volumes (pvc-…) that have neither PersistentVolume nor Volume nor Replica. The store deletes them from
// the node's disks.
const AnnotationDeleteOrphans = "varvebackup.io/delete-orphans"

// Reasons of a disk's condition Ready.
const (
	// ReasonDiskReady: the disk can be used.
	ReasonDiskReady = "DiskReady"
	// ReasonDiskUnusable: its directory is missing, is on a file system without reflinks, or is another disk. The message
	// says what to do.
	ReasonDiskUnusable = "DiskUnusable"
	// ReasonDiskPressure: less is free than spec.disks[].storageReserved. No copy or volume is made on it.
	ReasonDiskPressure = "DiskPressure"
	// ReasonDiskSilent: the disk has not answered for 30 seconds. What it has is unknown until it does.
	ReasonDiskSilent = "DiskSilent"
)

// ConditionVolumesIntact is a condition of a disk: False if volumes share blocks with a copy of their image that was
// found to be damaged. The message names them.
const ConditionVolumesIntact = "VolumesIntact"

// Reasons of a disk's condition VolumesIntact.
const (
	// ReasonNoDamageKnown: no volume on the disk is known to share wrong blocks.
	ReasonNoDamageKnown = "NoDamageKnown"
	// ReasonDamageShared: some do. Restore them from backups.
	ReasonDamageShared = "DamageShared"
)

// ReasonStoreSilent is the reason of a Node's condition Ready that is Unknown: its store has not reported for three
// minutes.
const ReasonStoreSilent = "StoreSilent"

// Node is a node of the cluster with its disks for images and volumes. It has the name of the Kubernetes node.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=lhn,categories=all
// +kubebuilder:metadata:labels="app.kubernetes.io/part-of=varve"
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="READY",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="ALLOWSCHEDULING",type=boolean,JSONPath=`.spec.allowScheduling`
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
type Node struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec NodeSpec `json:"spec,omitempty"`
	// +optional
	Status NodeStatus `json:"status,omitempty"`
}

// NodeList is a list of Nodes.
//
// +kubebuilder:object:root=true
type NodeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Node `json:"items"`
}

// NodeSpec are a node's disks.
type NodeSpec struct {
	// disks are the node's disks by name. The store adds default-disk when it makes the object.
	// +optional
	Disks map[string]DiskSpec `json:"disks,omitempty"`
	// allowScheduling is false if no new copy or volume is to be made on the node.
	// +kubebuilder:default=true
	// +optional
	AllowScheduling bool `json:"allowScheduling"`
	// tags are what nodeSelector of images and volumes selects.
	// +optional
	Tags []string `json:"tags,omitempty"`
}

// DiskSpec is a disk.
type DiskSpec struct {
	// diskType is filesystem.
	// +kubebuilder:validation:Enum=filesystem
	// +kubebuilder:default=filesystem
	// +optional
	Type string `json:"diskType,omitempty"`
	// path is a directory of the node, on XFS with reflinks or on btrfs. It is made a disk if it is empty.
	// +kubebuilder:validation:Pattern=`^/`
	// +kubebuilder:validation:MaxLength=1024
	Path string `json:"path"`
	// allowScheduling is false if no new copy or volume is to be made on the disk.
	// +kubebuilder:default=true
	// +optional
	AllowScheduling bool `json:"allowScheduling"`
	// evictionRequested is true if copies of images are to leave the disk.
	// +optional
	EvictionRequested bool `json:"evictionRequested,omitempty"`
	// storageReserved is how many bytes stay free.
	// +kubebuilder:validation:Minimum=0
	// +optional
	StorageReserved int64 `json:"storageReserved,omitempty"`
	// tags are what diskSelector of images and volumes selects.
	// +optional
	Tags []string `json:"tags,omitempty"`
}

// NodeStatus says what the disks of a node are like.
type NodeStatus struct {
	// diskStatus are the disks by their names in spec.disks.
	// +optional
	DiskStatus map[string]*DiskStatus `json:"diskStatus,omitempty"`
	// conditions are Ready: whether the node's store runs and a disk of it can be used.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// DiskStatus says what a disk is like.
type DiskStatus struct {
	// diskUUID identifies the disk. It is written on it.
	// +optional
	DiskUUID string `json:"diskUUID,omitempty"`
	// diskPath is spec.disks[].path.
	// +optional
	DiskPath string `json:"diskPath,omitempty"`
	// storageMaximum is how many bytes the disk has.
	// +optional
	StorageMaximum int64 `json:"storageMaximum"`
	// storageAvailable is how many bytes of it are free.
	// +optional
	StorageAvailable int64 `json:"storageAvailable"`
	// storageScheduled is the sum of the sizes of the volumes on the disk. It may exceed storageMaximum, because space is
	// taken when it is written.
	// +optional
	StorageScheduled int64 `json:"storageScheduled"`
	// lastScrubTime is when all images on the disk had last been read and compared with their hashes.
	// +optional
	LastScrubTime *metav1.Time `json:"lastScrubTime,omitempty"`
	// scrubProgress is how far the current pass is, in percent of the images' bytes.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	// +optional
	ScrubProgress int `json:"scrubProgress,omitempty"`
	// conditions are Ready, with the reason DiskReady, DiskPressure, DiskUnusable or DiskSilent, and VolumesIntact, with
	// the reason NoDamageKnown or DamageShared.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
