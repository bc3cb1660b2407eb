package v1beta1

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DefaultTTL is how long an export exists if ttlDuration is not set.
const DefaultTTL = 2 * time.Hour

// VirtualMachineExport serves disks over HTTPS from a pod in its namespace, for a limited time.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=vmexport;vmexports,categories=all
// +kubebuilder:metadata:labels="app.kubernetes.io/part-of=varve"
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="SourceKind",type=string,JSONPath=`.spec.source.kind`
// +kubebuilder:printcolumn:name="SourceName",type=string,JSONPath=`.spec.source.name`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Expires",type=string,JSONPath=`.status.ttlExpirationTime`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type VirtualMachineExport struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec VirtualMachineExportSpec `json:"spec"`
	// +optional
	Status VirtualMachineExportStatus `json:"status,omitempty"`
}

// VirtualMachineExportList is a list of VirtualMachineExports.
//
// +kubebuilder:object:root=true
type VirtualMachineExportList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []VirtualMachineExport `json:"items"`
}

// Kinds of sources.
const (
	// SourceBackup is a VirtualMachineBackup of backup.kubevirt.io in pull mode.
	SourceBackup = "VirtualMachineBackup"
	// SourceClaim is a PersistentVolumeClaim.
	SourceClaim = "PersistentVolumeClaim"
	// SourceMachine is a VirtualMachine of kubevirt.io.
	SourceMachine = "VirtualMachine"
	// SourceSnapshot is a VirtualMachineSnapshot of snapshot.kubevirt.io. KubeVirt's exports alone have it as a source.
	SourceSnapshot = "VirtualMachineSnapshot"
)

// VirtualMachineExportSpec says what is exported, to whom and for how long.
//
// +kubebuilder:validation:XValidation:rule="self.source == oldSelf.source",message="source is immutable: create another export",fieldPath=".source"
// +kubebuilder:validation:XValidation:rule="has(self.tokenSecretRef) == has(oldSelf.tokenSecretRef) && (!has(self.tokenSecretRef) || self.tokenSecretRef == oldSelf.tokenSecretRef)",message="tokenSecretRef is immutable: create another export",fieldPath=".tokenSecretRef"
type VirtualMachineExportSpec struct {
	// source is what is exported, in the export's namespace: a VirtualMachineBackup (backup.kubevirt.io) in pull mode, a
	// PersistentVolumeClaim, or a VirtualMachine (kubevirt.io) with all its disks.
	// +kubebuilder:validation:XValidation:rule="self.kind in ['VirtualMachineBackup', 'PersistentVolumeClaim', 'VirtualMachine']",message="kind must be VirtualMachineBackup, PersistentVolumeClaim or VirtualMachine",fieldPath=".kind"
	// +kubebuilder:validation:XValidation:rule="self.kind != 'VirtualMachineBackup' || has(self.apiGroup) && self.apiGroup == 'backup.kubevirt.io'",message="apiGroup of a VirtualMachineBackup must be backup.kubevirt.io",fieldPath=".apiGroup"
	// +kubebuilder:validation:XValidation:rule="self.kind != 'VirtualMachine' || has(self.apiGroup) && self.apiGroup == 'kubevirt.io'",message="apiGroup of a VirtualMachine must be kubevirt.io",fieldPath=".apiGroup"
	// +kubebuilder:validation:XValidation:rule="self.kind != 'PersistentVolumeClaim' || !has(self.apiGroup) || self.apiGroup == ''",message="apiGroup of a PersistentVolumeClaim must be empty",fieldPath=".apiGroup"
	// +kubebuilder:validation:XValidation:rule="size(self.name) > 0 && size(self.name) <= 253",message="name must have 1 to 253 characters",fieldPath=".name"
	Source corev1.TypedLocalObjectReference `json:"source"`

	// tokenSecretRef is a Secret in the export's namespace with the key token. Clients send its value in the header
	// x-kubevirt-export-token: at least 16 characters. The export waits for it. If the field is absent, a Secret is created; status names it.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	TokenSecretRef *string `json:"tokenSecretRef,omitempty"`

	// ttlDuration is how long after its creation the export is deleted, such as "30m". It may be changed. Default: 2h.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="duration(self) > duration('0s')",message="must be a positive duration, such as 30m"
	TTLDuration *metav1.Duration `json:"ttlDuration,omitempty"`
}

// VirtualMachineExportPhase sums up the state of an export.
type VirtualMachineExportPhase string

const (
	// ExportPending: something that the export needs is missing; the condition Ready says what.
	ExportPending VirtualMachineExportPhase = "Pending"
	// ExportReady: the export is served; links has the addresses.
	ExportReady VirtualMachineExportPhase = "Ready"
	// ExportTerminated: the source has ended, and the export is not served any more.
	ExportTerminated VirtualMachineExportPhase = "Terminated"
	// ExportSkipped: the source has nothing that could be exported.
	ExportSkipped VirtualMachineExportPhase = "Skipped"
)

// VirtualMachineExportStatus is the observed state of an export.
type VirtualMachineExportStatus struct {
	// phase is Pending, Ready, Terminated or Skipped.
	// +optional
	Phase VirtualMachineExportPhase `json:"phase,omitempty"`
	// links says where the export is served.
	// +optional
	Links *VirtualMachineExportLinks `json:"links,omitempty"`
	// tokenSecretRef is the Secret with the token that clients must send.
	// +optional
	TokenSecretRef *string `json:"tokenSecretRef,omitempty"`
	// ttlExpirationTime is when the export is deleted.
	// +optional
	TTLExpirationTime *metav1.Time `json:"ttlExpirationTime,omitempty"`
	// serviceName is the Service in front of the export pod, in the export's namespace.
	// +optional
	ServiceName string `json:"serviceName,omitempty"`
	// virtualMachineName is the virtual machine, if source is one.
	// +optional
	VirtualMachineName *string `json:"virtualMachineName,omitempty"`
	// conditions are Ready, and PVCReady if source is a claim or a virtual machine.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
}

// VirtualMachineExportLinks says where an export is served.
type VirtualMachineExportLinks struct {
	// internal is the address inside the cluster. Its certificates are there before the phase is Ready.
	// +optional
	Internal *VirtualMachineExportLink `json:"internal,omitempty"`
	// external is the address of the export proxy, if it has one.
	// +optional
	External *VirtualMachineExportLink `json:"external,omitempty"`
}

// VirtualMachineExportLink is one way to reach an export.
type VirtualMachineExportLink struct {
	// cert is the certificates of the authorities to trust, in PEM.
	Cert string `json:"cert"`
	// volumes are the disks of a claim or of a virtual machine.
	// +optional
	// +listType=map
	// +listMapKey=name
	Volumes []VirtualMachineExportVolume `json:"volumes,omitempty"`
	// backups are the maps and the data of the volumes of a VirtualMachineBackup, or of the disks of a claim or of a virtual
	// machine. A map of these says what is allocated.
	// +optional
	// +listType=map
	// +listMapKey=name
	Backups []VirtualMachineExportBackup `json:"backups,omitempty"`
	// manifests are descriptions of the exported machine.
	// +optional
	// +listType=map
	// +listMapKey=type
	Manifests []VirtualMachineExportManifest `json:"manifests,omitempty"`
}

// ExportManifestType is a kind of manifest.
type ExportManifestType string

const (
	// ManifestAll has every manifest but the token's Secret.
	ManifestAll ExportManifestType = "all"
	// ManifestAuthHeader is a Secret with the token as a header, as CDI reads it.
	ManifestAuthHeader ExportManifestType = "auth-header-secret"
)

// VirtualMachineExportManifest is where a manifest is served.
type VirtualMachineExportManifest struct {
	// type is all or auth-header-secret.
	Type ExportManifestType `json:"type"`
	// url is the address.
	URL string `json:"url"`
}

// VirtualMachineExportVolume is one disk.
type VirtualMachineExportVolume struct {
	// name is the claim's name.
	Name string `json:"name"`
	// formats are the forms in which the disk is served.
	// +optional
	// +listType=map
	// +listMapKey=format
	Formats []VirtualMachineExportVolumeFormat `json:"formats,omitempty"`
}

// ExportVolumeFormat is a form of a disk.
type ExportVolumeFormat string

const (
	// FormatRaw is the disk, byte for byte.
	FormatRaw ExportVolumeFormat = "raw"
	// FormatGzip is the disk, compressed with gzip.
	FormatGzip ExportVolumeFormat = "gzip"
	// FormatDir is the claim's root directory. Varve does not serve it.
	FormatDir ExportVolumeFormat = "dir"
	// FormatTarGz is an archive of the claim's root directory. Varve does not serve it.
	FormatTarGz ExportVolumeFormat = "tar.gz"
)

// VirtualMachineExportVolumeFormat is where a disk is served in one form.
type VirtualMachineExportVolumeFormat struct {
	// format is raw or gzip.
	Format ExportVolumeFormat `json:"format"`
	// url is the address.
	URL string `json:"url"`
}

// VirtualMachineExportBackup is one volume of a backup.
type VirtualMachineExportBackup struct {
	// name is the name of the volume in the virtual machine, or, of a disk of a claim or of a virtual machine, of its claim.
	Name string `json:"name"`
	// endpoints are what is served of the volume.
	// +optional
	// +listType=map
	// +listMapKey=endpoint
	Endpoints []VirtualMachineExportBackupEndpoint `json:"endpoints,omitempty"`
}

// ExportBackupEndpoint is something that is served of a backup's volume.
type ExportBackupEndpoint string

const (
	// EndpointMap lists the regions of the volume.
	EndpointMap ExportBackupEndpoint = "map"
	// EndpointData has the content of the volume.
	EndpointData ExportBackupEndpoint = "data"
)

// VirtualMachineExportBackupEndpoint is where something is served of a backup's volume.
type VirtualMachineExportBackupEndpoint struct {
	// endpoint is map or data.
	Endpoint ExportBackupEndpoint `json:"endpoint"`
	// url is the address.
	URL string `json:"url"`
}

// ConditionType is the type of a condition.
type ConditionType string

const (
	// ConditionReady is True while the export is served; otherwise its reason says what it waits for.
	ConditionReady ConditionType = "Ready"
	// ConditionPVC is True when every claim is bound and nobody writes to it.
	ConditionPVC ConditionType = "PVCReady"
)

// Condition is one aspect of an export's state.
type Condition struct {
	// type is Ready or PVCReady.
	Type ConditionType `json:"type"`
	// status is True, False or Unknown.
	Status corev1.ConditionStatus `json:"status"`
	// lastProbeTime is not set.
	// +optional
	// +nullable
	LastProbeTime metav1.Time `json:"lastProbeTime,omitempty"`
	// lastTransitionTime is when status changed last.
	// +optional
	// +nullable
	LastTransitionTime metav1.Time `json:"lastTransitionTime,omitempty"`
	// reason is one CamelCase word, such as PVCInUse.
	// +optional
	Reason string `json:"reason,omitempty"`
	// message says what happened to what, and what to do about it.
	// +optional
	Message string `json:"message,omitempty"`
}
