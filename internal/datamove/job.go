package datamove

import (
	"crypto/sha512"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// JobVariable is the environment variable of a mover pod that has its Job.
const JobVariable = "VARVE_MOVER_JOB"

// PodNameVariable and PodUIDVariable are environment variables of a mover pod that have its own name and UID, from the downward API.
const (
	PodNameVariable = "VARVE_POD_NAME"
	PodUIDVariable  = "VARVE_POD_UID"
)

// JobVersion is the version of Job that this package writes and reads.
const JobVersion = 1

// VolumeDirectory is where a mover pod has a volume of mode Filesystem, VolumeDevice where it has one of mode Block.
const (
	VolumeDirectory = "/run/varve/volume"
	VolumeDevice    = "/dev/varve-volume"
)

// TunnelDirectory is where the mover pod of an upload from a tunnel has the Secret for it, with these keys: the token by which it and the
// launcher know each other, and the certificate of its server with its key, in PEM. If the definition of the machine is stored, it has that
// as well, with the key DefinitionKey.
const (
	TunnelDirectory      = "/run/varve/tunnel"
	TunnelTokenKey       = "token"
	TunnelCertificateKey = "tls.crt"
	TunnelPrivateKey     = "tls.key"
)

// TunnelPort is where the mover pod of an upload from a tunnel expects the launcher.
const TunnelPort = 9090

// ImageFile is the file of a Filesystem volume that is the disk of a virtual machine. A volume with nothing else in its root
// directory, but for lost+found, is stored as a disk.
const ImageFile = "disk.img"

// ConfigBlockSize is a key of spec.dataMoverConfig of a DataUpload: the block size of a disk that has no restore
// point yet, such as "1MiB". Without it, the size of the disk decides.
const ConfigBlockSize = "blockSize"

// ConfigStoragePatience is a key of spec.dataMoverConfig: how long a mover pod waits for a storage that does not
// answer, as a duration such as "1h30m". Without it, it is DefaultStoragePatience.
const ConfigStoragePatience = "storagePatience"

// DefaultOperationTimeout is the operationTimeout of an object that names none, as Velero has it. It bounds each wait
// for one thing, such as a volume.
const DefaultOperationTimeout = 10 * time.Minute

// ConfigDiskBytes is a key of spec.dataMoverConfig of a DataUpload of an image: how many bytes the image has, which are
// the first ones of its volume.
const ConfigDiskBytes = "diskBytes"

// ReadDiskBytes returns what ConfigDiskBytes says.
func ReadDiskBytes(config map[string]string) (int64, error) {
	bytes, err := strconv.ParseInt(config[ConfigDiskBytes], 10, 64)
	if err != nil || bytes <= 0 {
		return 0, fmt.Errorf("spec.dataMoverConfig: %s %.80q is not a number of bytes", ConfigDiskBytes,
			config[ConfigDiskBytes])
	}
	return bytes, nil
}

// ConfigDiskChecksum is a key of spec.dataMoverConfig of a DataUpload of an image: the SHA-512 of the image, in
// lower-case hexadecimal digits.
const ConfigDiskChecksum = "diskChecksum"

// ReadDiskChecksum returns what ConfigDiskChecksum says.
func ReadDiskChecksum(config map[string]string) (string, error) {
	sum := config[ConfigDiskChecksum]
	if !isChecksum(sum) {
		return "", fmt.Errorf("spec.dataMoverConfig: %s %.140q is not a SHA-512 of %d lower-case hexadecimal digits",
			ConfigDiskChecksum, sum, hex.EncodedLen(sha512.Size))
	}
	return sum, nil
}

func isChecksum(text string) bool {
	sum, err := hex.DecodeString(text)
	return err == nil && len(sum) == sha512.Size && hex.EncodeToString(sum) == text
}

// ReadStoragePatience returns what ConfigStoragePatience says, or nil if it is not there.
func ReadStoragePatience(config map[string]string) (*metav1.Duration, error) {
	text, has := config[ConfigStoragePatience]
	if !has {
		return nil, nil //nolint:nilnil // not there
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return nil, fmt.Errorf("spec.dataMoverConfig: %s %.80q is not a duration such as 1h30m", ConfigStoragePatience, text)
	}
	return &metav1.Duration{Duration: d}, nil
}

// Job says what a mover pod does. It holds no secret.
type Job struct {
	// Version is JobVersion.
	Version int `json:"version"`
	// Kind, Namespace, Name and UID are the object's, which the pod reads, watches for spec.cancel, and reports to.
	Kind      Kind      `json:"kind"`
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
	// VolumeMode says whether the volume is at VolumeDirectory or at VolumeDevice. It is empty for an upload from a tunnel or
	// from endpoints.
	VolumeMode corev1.PersistentVolumeMode `json:"volumeMode,omitempty"`
	// SourceNamespace and SourceClaim name the history that an upload belongs to, and SourceUID, the claim's UID, distinguishes its
	// volume from every other one of these names; "" if the claim is gone.
	SourceNamespace string    `json:"sourceNamespace,omitempty"`
	SourceClaim     string    `json:"sourceClaim,omitempty"`
	SourceUID       types.UID `json:"sourceUID,omitempty"`
	// Tunnel is where the disk comes from if it is that of a running machine; nil for a volume.
	Tunnel *TunnelSource `json:"tunnel,omitempty"`
	// Definition says that the pod has the definition of the machine, as DefinitionKey of TunnelDirectory or of EndpointDirectory, and
	// stores it with the disk. Only with Tunnel, or with an Endpoint of an export.
	Definition bool `json:"definition,omitempty"`
	// Endpoint is where the disk comes from if it is in a pull backup of somebody else's, or in the export of a stopped machine; nil for
	// all others.
	Endpoint *EndpointSource `json:"endpoint,omitempty"`
	// Snapshot is the CSI snapshot that a Block volume is of; nil for all others.
	Snapshot *SnapshotSource `json:"snapshot,omitempty"`
	// DiskBytes is how many of the first bytes of a Block volume an upload stores; 0: all.
	DiskBytes int64 `json:"diskBytes,omitempty"`
	// DiskChecksum is the SHA-512 of these bytes, in lower-case hexadecimal digits: an upload of other bytes fails. It is
	// set if and only if DiskBytes is.
	DiskChecksum string `json:"diskChecksum,omitempty"`
	// Labels are those of an upload's restore point.
	Labels map[string]string `json:"labels,omitempty"`
	// SnapshotID is what a download writes to the volume.
	SnapshotID string `json:"snapshotID,omitempty"`
	// ReadDefinition says that a download writes the definition of the machine into the Secret of the pod's name, and no
	// volume.
	ReadDefinition bool `json:"readDefinition,omitempty"`
	// SkipEqual says that the volume of a download has some of the disk already, as a clone of an image has. Only what
	// differs is written, so that the rest stays shared. Only for a Block volume.
	SkipEqual bool `json:"skipEqual,omitempty"`
	// Image says that the volume of a download is the source of an image: the pod writes the record of package handover
	// at its end.
	Image bool `json:"image,omitempty"`
	// Parallel is how many parts of the volume are moved at once; 0: as many as the mover finds good.
	Parallel int `json:"parallel,omitempty"`
	// StoragePatience is how long the pod waits for a storage that does not answer before it fails; nil:
	// DefaultStoragePatience.
	StoragePatience *metav1.Duration `json:"storagePatience,omitempty"`
}

// DefaultStoragePatience is as long as Velero waits for a DataUpload by default.
const DefaultStoragePatience = 4 * time.Hour

// WaitForStorage returns how long the pod waits for a storage that does not answer.
func (j Job) WaitForStorage() time.Duration {
	if j.StoragePatience == nil {
		return DefaultStoragePatience
	}
	return j.StoragePatience.Duration
}

// TunnelSource is a disk in the pull backup of a running machine. The pod is the far end of the launcher's tunnel.
type TunnelSource struct {
	// BackupUID is the VirtualMachineBackup's.
	BackupUID types.UID `json:"backupUID"`
	// Volume is the disk's name in the backup.
	Volume string `json:"volume"`
	// Checkpoint is the one that the backup makes, or "".
	Checkpoint string `json:"checkpoint,omitempty"`
	// BaseCheckpoint is the one that the disk's changes are counted from, and BaseUID the UID of the backup that made it. They count only
	// if the launcher offers the disk's changes.
	BaseCheckpoint string    `json:"baseCheckpoint,omitempty"`
	BaseUID        types.UID `json:"baseUID,omitempty"`
}

// Encode returns the job as JobVariable has it. Equal jobs have equal encodings.
func (j Job) Encode() string {
	j.Version = JobVersion
	text, err := json.Marshal(j)
	if err != nil {
		panic(err) // strings and numbers
	}
	return string(text)
}

// DecodeJob reads the value of JobVariable. It refuses fields and versions that it does not know.
func DecodeJob(text string) (Job, error) {
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.DisallowUnknownFields()
	var j Job
	if err := decoder.Decode(&j); err != nil {
		return Job{}, fmt.Errorf("decode %s: %w", JobVariable, err)
	}
	if err := j.validate(); err != nil {
		return Job{}, fmt.Errorf("%s: %w", JobVariable, err)
	}
	return j, nil
}

func (j Job) validate() error {
	switch {
	case j.Version != JobVersion:
		return fmt.Errorf("version %d, want %d", j.Version, JobVersion)
	case j.Namespace == "" || j.Name == "" || j.UID == "":
		return errors.New("no object")
	case j.Kind == Upload && (j.SourceNamespace == "" || j.SourceClaim == ""):
		return errors.New("an upload without a source")
	case j.Kind == Download && j.SnapshotID == "":
		return errors.New("a download without a snapshotID")
	case j.WaitForStorage() < 0:
		return fmt.Errorf("a storagePatience of %s", j.StoragePatience.Duration)
	case j.Kind != Upload && j.Kind != Download:
		return fmt.Errorf("unknown kind %q", j.Kind)
	}
	return errors.Join(j.validateVolume(), j.validateTunnel(), j.validateEndpoint(), j.validateSnapshot())
}

// validateVolume checks what depends on the mode of the volume.
func (j Job) validateVolume() error {
	switch {
	case j.ReadDefinition && (j.Kind != Download || j.VolumeMode != ""):
		return errors.New("a definition that is read beside something else")
	case j.SkipEqual && (j.Kind != Download || j.VolumeMode != corev1.PersistentVolumeBlock):
		return errors.New("a comparison with something else than the Block volume of a download")
	case j.Image && (j.Kind != Download || j.VolumeMode != corev1.PersistentVolumeBlock):
		return errors.New("an image that is written to something else than a Block volume")
	}
	return j.validateDiskBytes()
}

func (j Job) validateDiskBytes() error {
	switch {
	case j.DiskBytes < 0 || j.DiskBytes > 0 && (j.Kind != Upload || j.VolumeMode != corev1.PersistentVolumeBlock):
		return errors.New("a number of bytes of something else than a Block volume")
	case (j.DiskBytes > 0) != (j.DiskChecksum != "") || j.DiskChecksum != "" && !isChecksum(j.DiskChecksum):
		return errors.New("the first bytes of a volume without their SHA-512, or one of something else")
	}
	return nil
}

func (j Job) validateTunnel() error {
	if j.Tunnel != nil && (j.Kind != Upload || j.VolumeMode != "" || j.Tunnel.BackupUID == "" || j.Tunnel.Volume == "") {
		return errors.New("a tunnel without a backup or a volume, or beside another source")
	}
	if j.Definition && j.Tunnel == nil && j.Endpoint == nil {
		return errors.New("the definition of a machine without a disk of it")
	}
	return nil
}

func (j Job) validateSnapshot() error {
	switch {
	case j.Snapshot == nil:
		return nil
	case j.Kind != Upload || j.VolumeMode != corev1.PersistentVolumeBlock:
		return errors.New("a snapshot of something else than a Block volume")
	}
	return j.Snapshot.validate()
}

func (j Job) validateEndpoint() error {
	switch {
	case j.Endpoint == nil:
		return nil
	case j.Kind != Upload || j.VolumeMode != "" || j.Tunnel != nil:
		return errors.New("endpoints beside another source")
	}
	return j.Endpoint.validate()
}

// VolumePath returns where the pod has its volume.
func (j Job) VolumePath() string {
	if j.VolumeMode == corev1.PersistentVolumeBlock {
		return VolumeDevice
	}
	return path.Clean(VolumeDirectory)
}
