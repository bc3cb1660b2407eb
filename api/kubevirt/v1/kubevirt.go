package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Feature gates that a KubeVirt object can name.
const (
	// IncrementalBackup admits VirtualMachineBackup and VirtualMachineBackupTracker and turns
	// changed block tracking on.
	IncrementalBackup = "IncrementalBackup"
	// UtilityVolumes admits spec.utilityVolumes on a VirtualMachineInstance.
	UtilityVolumes = "UtilityVolumes"
	// VMExport admits VirtualMachineExport.
	VMExport = "VMExport"
)

// KubeVirt is the cluster's configuration. One object, named kubevirt, in Varve's namespace.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=kv;kvs,categories=all
// +kubebuilder:metadata:labels="app.kubernetes.io/part-of=varve"
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type KubeVirt struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec KubeVirtSpec `json:"spec"`
}

// KubeVirtList is a list of KubeVirt objects.
//
// +kubebuilder:object:root=true
type KubeVirtList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []KubeVirt `json:"items"`
}

// KubeVirtSpec is the desired configuration.
type KubeVirtSpec struct {
	// configuration holds what the components read while they run; a change takes effect without a restart.
	// +optional
	Configuration KubeVirtConfiguration `json:"configuration,omitempty"`
}

// KubeVirtConfiguration holds what the components read while they run.
type KubeVirtConfiguration struct {
	// developerConfiguration holds feature gates and the choice of software emulation.
	// +optional
	DeveloperConfiguration *DeveloperConfiguration `json:"developerConfiguration,omitempty"`

	// changedBlockTrackingLabelSelectors selects the virtual machines whose disks are tracked for
	// incremental backup: those that match either selector.
	// +optional
	// +nullable
	ChangedBlockTrackingLabelSelectors *ChangedBlockTrackingSelectors `json:"changedBlockTrackingLabelSelectors,omitempty"`

	// migrations limits the moves of running guests from node to node.
	// +optional
	MigrationConfiguration *MigrationConfiguration `json:"migrations,omitempty"`
}

// DeveloperConfiguration holds feature gates and the choice of software emulation.
type DeveloperConfiguration struct {
	// featureGates lists the features to enable. Known: IncrementalBackup, UtilityVolumes,
	// VMExport.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=64
	FeatureGates []string `json:"featureGates,omitempty"`

	// useEmulation runs guests under software emulation (TCG) instead of KVM.
	// +optional
	UseEmulation bool `json:"useEmulation,omitempty"`
}

// ChangedBlockTrackingSelectors selects virtual machines. A machine that either selector matches is
// tracked. An absent selector matches nothing; an empty one matches everything.
type ChangedBlockTrackingSelectors struct {
	// namespaceLabelSelector selects every virtual machine in the namespaces that it matches.
	// +optional
	NamespaceLabelSelector *metav1.LabelSelector `json:"namespaceLabelSelector,omitempty"`
	// virtualMachineLabelSelector selects virtual machines by their own labels.
	// +optional
	VirtualMachineLabelSelector *metav1.LabelSelector `json:"virtualMachineLabelSelector,omitempty"`
}
