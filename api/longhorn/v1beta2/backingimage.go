package v1beta2

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DataEngine is the engine of an image or a volume: v2, or empty for it.
//
// +kubebuilder:validation:MaxLength=16
// +kubebuilder:validation:XValidation:rule="size(self) == 0 || self == 'v2'",message="must be v2: Varve has no v1 engine"
type DataEngine string

// DataEngineV2 is the only engine that Varve has.
const DataEngineV2 DataEngine = "v2"

// SourceType is where the first copy of an image comes from.
type SourceType string

// The sources of images.
const (
	// SourceDownload: from the address in the parameter url.
	SourceDownload SourceType = "download"
	// SourceUpload: from a file of a user, with `varve image upload`.
	SourceUpload SourceType = "upload"
	// SourceExport: from the volume in the parameter volume-name.
	SourceExport SourceType = "export-from-volume"
	// SourceClone: from the image in the parameter backing-image.
	SourceClone SourceType = "clone"
	// SourceRestore: from a restore point of a repository.
	SourceRestore SourceType = "restore"
)

// IsLocal reports whether the first copy needs no source pod: it is made of what is on its disk already.
func (t SourceType) IsLocal() bool { return t == SourceClone || t == SourceExport }

// Keys of BackingImageSpec.SourceParameters.
const (
	// ParameterURL is the http or https address of a download. Its file is raw or qcow2, and may be compressed with gzip,
	// xz or zstd.
	ParameterURL = "url"
	// ParameterVolumeName is the volume of an export.
	ParameterVolumeName = "volume-name"
	// ParameterBackingImage is the image that a clone is made of.
	ParameterBackingImage = "backing-image"
	// ParameterLocation is the BackupStorageLocation, in the image's namespace, that the restore point of a restore is in.
	ParameterLocation = "backup-storage-location"
	// ParameterSnapshotID names that restore point. It is status.snapshotID of the DataUpload that stored it.
	ParameterSnapshotID = "snapshot-id"
	// ParameterCACertificate is the certificate in PEM that verifies the server of a download, instead of the usual ones.
	ParameterCACertificate = "ca-certificate"
)

// AnnotationCheckCopy and the UUID of a disk are the name of an annotation of a BackingImage. The store of the disk
// reads the copy there at once, and compares it with what was sealed, whenever the annotation has a new value.
const AnnotationCheckCopy = "check-copy.varvebackup.io/"

// BackingImageState says how far an image's copy is.
type BackingImageState string

// The states of copies.
const (
	StatePending    BackingImageState = "pending"
	StateInProgress BackingImageState = "in-progress"
	StateReady      BackingImageState = "ready"
	StateFailed     BackingImageState = "failed"
	StateUnknown    BackingImageState = "unknown" // nothing has reported it since it was reported last
)

// BackingImageFinalizer is on an image while a disk may have a copy of it.
const BackingImageFinalizer = "longhorn.io"

// ConditionReady is the condition of an image that is True if a copy of it is ready, and of a disk that can be used.
const ConditionReady = "Ready"

// Reasons of an image's condition Ready.
const (
	// ReasonImageReady: a copy is ready.
	ReasonImageReady = "Ready"
	// ReasonNoDisk: no disk can have the first copy. The message says what is wrong with each.
	ReasonNoDisk = "NoDisk"
	// ReasonSourceNotReady: the image, the volume or the backup storage location that the first copy is made of is missing
	// or not ready, or the volume is attached.
	ReasonSourceNotReady = "SourceNotReady"
	// ReasonFirstCopyInProgress: the first copy is being made.
	ReasonFirstCopyInProgress = "FirstCopyInProgress"
	// ReasonFirstCopyUnknown: nothing reports the first copy. It is made on another disk if that stays so.
	ReasonFirstCopyUnknown = "FirstCopyUnknown"
	// ReasonFirstCopyFailed: the first copy failed, and is tried again at status.firstCopyRetryTime.
	ReasonFirstCopyFailed = "FirstCopyFailed"
	// ReasonNoReadyCopy: the image was ready, and none of its copies is now.
	ReasonNoReadyCopy = "NoReadyCopy"
	// ReasonInUse: the image is being deleted, and stays as long as there are volumes that were cloned from it.
	ReasonInUse = "InUse"
	// ReasonDeleting: the image is being deleted, and its copies go.
	ReasonDeleting = "Deleting"
)

// ReasonCopyFailed is the reason of an event on an image: a copy besides the first one failed.
const ReasonCopyFailed = "CopyFailed"

// BackingImage is an image that volumes are cloned from. A copy of it is on each disk in spec.diskFileSpecMap.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=lhbi,categories=all
// +kubebuilder:metadata:labels="app.kubernetes.io/part-of=varve"
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="SOURCETYPE",type=string,JSONPath=`.spec.sourceType`
// +kubebuilder:printcolumn:name="FIRSTCOPY",type=string,JSONPath=`.status.v2FirstCopyStatus`
// +kubebuilder:printcolumn:name="SIZE",type=integer,JSONPath=`.status.size`
// +kubebuilder:printcolumn:name="COPIES",type=integer,JSONPath=`.status.readyCopies`
// +kubebuilder:printcolumn:name="READY",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="UUID",type=string,JSONPath=`.status.uuid`,priority=1
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="metadata.name must be at most 63 characters: claims and pods are named after it"
type BackingImage struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec BackingImageSpec `json:"spec"`
	// +optional
	Status BackingImageStatus `json:"status,omitempty"`
}

// BackingImageList is a list of BackingImages.
//
// +kubebuilder:object:root=true
type BackingImageList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []BackingImage `json:"items"`
}

// BackingImageSpec says where an image comes from, and on which disks it is.
//
// +kubebuilder:validation:XValidation:rule="self.sourceType != 'download' || self.?sourceParameters[?'url'].orValue('-').startsWith('http://') || self.?sourceParameters[?'url'].orValue('-').startsWith('https://')",message="sourceParameters.url must be an address that begins with http:// or https://",fieldPath=".sourceParameters"
// +kubebuilder:validation:XValidation:rule="self.sourceType != 'export-from-volume' || self.?sourceParameters[?'volume-name'].hasValue()",message="sourceParameters.volume-name must name the volume",fieldPath=".sourceParameters"
// +kubebuilder:validation:XValidation:rule="self.sourceType != 'clone' || self.?sourceParameters[?'backing-image'].hasValue()",message="sourceParameters.backing-image must name the image",fieldPath=".sourceParameters"
// +kubebuilder:validation:XValidation:rule="self.sourceType != 'restore' || self.?sourceParameters[?'backup-storage-location'].hasValue()",message="sourceParameters.backup-storage-location must name the BackupStorageLocation",fieldPath=".sourceParameters"
// +kubebuilder:validation:XValidation:rule="self.sourceType != 'restore' || self.?sourceParameters[?'snapshot-id'].orValue('-').startsWith('varve1.disk.')",message="sourceParameters.snapshot-id must be the snapshot ID of a disk, which begins with varve1.disk.",fieldPath=".sourceParameters"
type BackingImageSpec struct {
	// dataEngine is v2.
	// +kubebuilder:default=v2
	// +optional
	DataEngine DataEngine `json:"dataEngine,omitempty"`
	// sourceType is where the first copy comes from.
	// +kubebuilder:validation:Enum=download;upload;export-from-volume;clone;restore
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="sourceType cannot change: make another image"
	SourceType SourceType `json:"sourceType"`
	// sourceParameters are those of the source type: url, volume-name, backing-image, or backup-storage-location and
	// snapshot-id.
	// +kubebuilder:validation:MaxProperties=16
	// +optional
	SourceParameters map[string]ParameterValue `json:"sourceParameters,omitempty"`
	// checksum is what the image must have: the SHA-512 or the SHA-256 of the raw image in lower-case hexadecimal.
	// +kubebuilder:validation:Pattern=`^([0-9a-f]{64}|[0-9a-f]{128})?$`
	// +optional
	Checksum string `json:"checksum,omitempty"`
	// minNumberOfCopies is on how many disks the image is at least.
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +optional
	MinNumberOfCopies int `json:"minNumberOfCopies,omitempty"`
	// diskFileSpecMap are the disks that have a copy, by their UUIDs. The controller adds and removes some; a user may,
	// too.
	// +kubebuilder:validation:MaxProperties=10000
	// +optional
	DiskFileSpecMap map[string]*BackingImageDiskFileSpec `json:"diskFileSpecMap,omitempty"`
	// diskSelector are tags that a disk has to have.
	// +optional
	DiskSelector []string `json:"diskSelector,omitempty"`
	// nodeSelector are tags that the disk's node has to have.
	// +optional
	NodeSelector []string `json:"nodeSelector,omitempty"`
}

// ParameterValue is the value of a source's parameter.
//
// +kubebuilder:validation:MaxLength=16384
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="sourceParameters cannot change: make another image"
type ParameterValue string

// BackingImageDiskFileSpec is what is wanted of a copy.
type BackingImageDiskFileSpec struct {
	// evictionRequested is true if the copy is to go when there are enough others.
	// +optional
	EvictionRequested bool `json:"evictionRequested,omitempty"`
	// keep is true if the copy stays although nobody uses it. It counts for minNumberOfCopies, and no other copy goes
	// because of it.
	// +optional
	Keep bool `json:"keep,omitempty"`
	// dataEngine is v2.
	// +optional
	DataEngine DataEngine `json:"dataEngine,omitempty"`
}

// FirstCopyMismatch counts first copies that did not match spec.checksum.
type FirstCopyMismatch struct {
	// checksum is spec.checksum as it was then.
	Checksum string `json:"checksum"`
	// count is how many attempts in a row did not match it.
	Count int32 `json:"count"`
}

// HasReadyCopy says whether a disk has a copy of the image that is ready, and stays.
func (b *BackingImage) HasReadyCopy(disk string) bool {
	_, stays := b.Spec.DiskFileSpecMap[disk]
	c := b.Status.DiskFileStatusMap[disk]
	return stays && c != nil && c.State == StateReady
}

// BackingImageStatus says what is there of an image.
type BackingImageStatus struct {
	// uuid identifies the image on disks. It never changes.
	// +optional
	UUID string `json:"uuid,omitempty"`
	// size is how many bytes the image has. It is known when the first copy is ready.
	// +optional
	Size int64 `json:"size,omitempty"`
	// virtualSize is the same as size, because copies are raw.
	// +optional
	VirtualSize int64 `json:"virtualSize,omitempty"`
	// realSize is how many bytes the first copy takes on its disk.
	// +optional
	RealSize int64 `json:"realSize,omitempty"`
	// checksum is the SHA-512 of the image in hexadecimal, of what was read back from the first copy's disk.
	// +optional
	Checksum string `json:"checksum,omitempty"`
	// piecesChecksum is the SHA-256 of the SHA-256 of each MiB of the image, one after the other. Further copies are
	// compared with it.
	// +optional
	PiecesChecksum string `json:"piecesChecksum,omitempty"`
	// v2FirstCopyStatus says how far the first copy is: pending, in-progress, ready, failed or unknown.
	// +optional
	V2FirstCopyStatus BackingImageState `json:"v2FirstCopyStatus,omitempty"`
	// v2FirstCopyDisk is the UUID of the first copy's disk.
	// +optional
	V2FirstCopyDisk string `json:"v2FirstCopyDisk,omitempty"`
	// firstCopyAttempts is how often the first copy has failed.
	// +optional
	FirstCopyAttempts int32 `json:"firstCopyAttempts,omitempty"`
	// firstCopyRetryTime is when it is tried again.
	// +optional
	FirstCopyRetryTime *metav1.Time `json:"firstCopyRetryTime,omitempty"`
	// firstCopyMessage says why the first copy failed last. It is empty as soon as a copy is ready.
	// +optional
	FirstCopyMessage string `json:"firstCopyMessage,omitempty"`
	// firstCopyMismatch is set if the source gave an image that does not match spec.checksum. As long as that goes on,
	// attempts become rarer, until spec.checksum changes.
	// +optional
	FirstCopyMismatch *FirstCopyMismatch `json:"firstCopyMismatch,omitempty"`
	// firstCopyFile identifies the uploaded file that the image was made of, in the way of the command that uploaded it.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	FirstCopyFile string `json:"firstCopyFile,omitempty"`
	// firstCopyWrittenTime is when the source had written the whole image. From then on the disk's store seals it.
	// +optional
	FirstCopyWrittenTime *metav1.Time `json:"firstCopyWrittenTime,omitempty"`
	// readyCopies is how many copies are ready.
	// +optional
	ReadyCopies int32 `json:"readyCopies"`
	// diskFileStatusMap says how far each copy is, by its disk's UUID.
	// +kubebuilder:validation:MaxProperties=10000
	// +optional
	DiskFileStatusMap map[string]*BackingImageDiskFileStatus `json:"diskFileStatusMap,omitempty"`
	// diskLastRefAtMap says when each copy was used last, by its disk's UUID.
	// +optional
	DiskLastRefAtMap map[string]string `json:"diskLastRefAtMap,omitempty"`
	// conditions are Ready: whether volumes can be cloned from the image.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// BackingImageDiskFileStatus says how far a copy is.
type BackingImageDiskFileStatus struct {
	// dataEngine is v2.
	// +optional
	DataEngine DataEngine `json:"dataEngine,omitempty"`
	// state is pending, in-progress, ready, failed or unknown.
	// +optional
	State BackingImageState `json:"state,omitempty"`
	// progress is how much of the copy is there, in percent.
	// +optional
	Progress int `json:"progress"`
	// message says why the copy failed, or what it waits for.
	// +optional
	Message string `json:"message,omitempty"`
	// lastStateTransitionTime is when state changed last.
	// +optional
	LastStateTransitionTime string `json:"lastStateTransitionTime,omitempty"`
	// retrySpec is set if the controller took a copy that failed off its disk: what it adds to spec.diskFileSpecMap
	// again, five minutes after the copy failed.
	// +optional
	RetrySpec *BackingImageDiskFileSpec `json:"retrySpec,omitempty"`
}
