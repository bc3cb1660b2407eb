package datamove

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/varvebackup/varve/internal/errclass"
)

// Keys of spec.dataMoverConfig of a DataUpload with the snapshotType VirtualMachineBackup that reads a pull backup of somebody else's over
// its HTTPS endpoints, beside ConfigVolume. Other keys are ignored.
const (
	// ConfigSource says how the disk is read: SourceEndpoints or SourceExport; without it, over a tunnel from the launcher.
	ConfigSource = "source"
	// ConfigBackup is the name of the VirtualMachineBackup, in spec.sourceNamespace.
	ConfigBackup = "virtualMachineBackup"
	// ConfigDeleteBackup is "true" if the VirtualMachineBackup is to be deleted, which says that it was read, when all its disks are stored.
	ConfigDeleteBackup = "deleteBackup"
)

// SourceEndpoints is the value of ConfigSource for the endpoints of a pull backup.
const SourceEndpoints = "endpoints"

// EndpointDirectory is where the mover pod of an upload from endpoints has the Secret for them, with these keys: the token that the server
// wants, the certificates of those who may have signed the server's, in PEM, and why the backup cannot be read any more, which is empty as
// long as it can. If the definition of the machine is stored, it has that as well, with the key DefinitionKey. The Secret has the pod's
// name, and the pod owns it.
const (
	EndpointDirectory      = "/run/varve/endpoint"
	EndpointTokenKey       = "token"
	EndpointAuthoritiesKey = "ca.crt"
	EndpointEndedKey       = "ended"
)

// BackupDisk says which disk of a VirtualMachineBackup a DataUpload moves.
type BackupDisk struct {
	// Backup is the VirtualMachineBackup's name, and Volume that of the volume of its machine.
	Backup, Volume string
	// DeleteBackup: the backup is deleted when all its disks are stored.
	DeleteBackup bool
	// Group is a DNS label that the DataUploads of the machine's disks have in common, and Definition the UID of the
	// machine definition that is stored with the disk; "" for disks that are stored alone.
	Group, Definition string
}

// Config returns the disk as spec.dataMoverConfig has it.
func (d *BackupDisk) Config() map[string]string {
	config := map[string]string{ConfigSource: SourceEndpoints, ConfigBackup: d.Backup, ConfigVolume: d.Volume}
	if d.DeleteBackup {
		config[ConfigDeleteBackup] = "true"
	}
	if d.Group != "" {
		config[ConfigGroup] = d.Group
	}
	if d.Definition != "" {
		config[ConfigDefinition] = d.Definition
	}
	return config
}

// ReadsEndpoints says whether a DataUpload of the snapshotType VirtualMachineBackup with this dataMoverConfig reads endpoints.
func ReadsEndpoints(config map[string]string) bool { return config[ConfigSource] == SourceEndpoints }

// ParseBackupDisk reads spec.dataMoverConfig. Errors have the class errclass.Invalid and name the key.
func ParseBackupDisk(config map[string]string) (BackupDisk, error) {
	d := BackupDisk{
		Backup: config[ConfigBackup], Volume: config[ConfigVolume], Group: config[ConfigGroup],
		Definition: config[ConfigDefinition],
	}
	var failures []string
	if why := validation.IsDNS1123Subdomain(d.Backup); len(why) > 0 {
		failures = append(failures, fmt.Sprintf("%s %.80q: %s", ConfigBackup, d.Backup, why[0]))
	}
	if why := validation.IsDNS1123Label(d.Volume); len(why) > 0 {
		failures = append(failures, fmt.Sprintf("%s %.80q: %s", ConfigVolume, d.Volume, why[0]))
	}
	if text, ok := config[ConfigDeleteBackup]; ok {
		var err error
		if d.DeleteBackup, err = strconv.ParseBool(text); err != nil {
			failures = append(failures, fmt.Sprintf("%s %.80q: must be true or false", ConfigDeleteBackup, text))
		}
	}
	if why := validation.IsDNS1123Label(d.Group); d.Group != "" && len(why) > 0 {
		failures = append(failures, fmt.Sprintf("%s %.80q: %s", ConfigGroup, d.Group, why[0]))
	}
	if why := isLowerUUID(d.Definition); d.Definition != "" && len(why) > 0 {
		failures = append(failures, fmt.Sprintf("%s %.80q: %s", ConfigDefinition, d.Definition, why[0]))
	}
	if len(failures) > 0 {
		return BackupDisk{}, errclass.Errorf(errclass.Invalid, "spec.dataMoverConfig: %s", strings.Join(failures, "; "))
	}
	return d, nil
}

// EndpointSource is a disk in a pull backup, or in the export of a stopped machine, at its HTTPS endpoints.
type EndpointSource struct {
	// Map and Data are URLs. An export that has the disk as one file, and no map of it, as KubeVirt's do, has no Map.
	Map  string `json:"map,omitempty"`
	Data string `json:"data"`
	// KubeVirt: the endpoints speak the dialect of KubeVirt 1.8.
	KubeVirt bool `json:"kubeVirt,omitempty"`
	// Export: the disk is in the export of a stopped machine, or of a snapshot. Volume is then its claim, BackupUID the
	// UID of the export, and nothing is known of changes.
	Export bool `json:"export,omitempty"`
	// Address is where the host of the URLs is, as host:port, so that the pod needs no DNS; "": as the host's name says.
	Address string `json:"address,omitempty"`
	// Volume is the disk's name in the backup, and BackupUID the backup's.
	Volume    string    `json:"volume"`
	BackupUID types.UID `json:"backupUID"`
	// Bytes is the disk's size; 0 if the backup does not tell.
	Bytes int64 `json:"bytes,omitempty"`
	// Checkpoint is the one that the backup makes, or "". CheckpointUID makes its name unique: it is the UID of the backup,
	// or, with KubeVirt 1.8, those of the tracker and of the guest's instance.
	Checkpoint    string    `json:"checkpoint,omitempty"`
	CheckpointUID types.UID `json:"checkpointUID,omitempty"`
	// BaseCheckpoint and BaseUID are the same of the one that the map's changes are counted from; "" if it says nothing about changes, or
	// nobody knows since when.
	BaseCheckpoint string    `json:"baseCheckpoint,omitempty"`
	BaseUID        types.UID `json:"baseUID,omitempty"`
	// FullReason says why everything is read, if an earlier backup has a checkpoint that does not count, or if the disk is
	// in the export of a snapshot (FullNotTracked).
	FullReason string `json:"fullReason,omitempty"`
}

// FullMachineRestarted is why the disk of a machine of KubeVirt's is read as a whole: its changes are believed within one
// run of the guest.
const FullMachineRestarted = "MachineRestarted"

func (e *EndpointSource) validate() error {
	switch {
	case e.Map == "" && !e.Export || e.Data == "":
		return errors.New("endpoints without a URL")
	case e.Volume == "" || e.BackupUID == "":
		return errors.New("endpoints without a volume or a backup")
	case e.Bytes < 0:
		return fmt.Errorf("endpoints of a disk of %d bytes", e.Bytes)
	case e.Export && (e.KubeVirt || e.Checkpoint != "" || e.BaseCheckpoint != ""):
		return errors.New("an export with checkpoints, or in the dialect of KubeVirt 1.8")
	case (e.Checkpoint == "") != (e.CheckpointUID == "") || (e.BaseCheckpoint == "") != (e.BaseUID == ""):
		return errors.New("endpoints with a checkpoint that is not unique")
	}
	return nil
}

// ReadBackupVersion is the version of ReadBackup that this package writes and reads.
const ReadBackupVersion = 1

// ReadBackup is what is remembered on a DataUpload (AnnotationExposed) that reads the endpoints of a pull backup or of an export.
type ReadBackup struct {
	Version int `json:"version"`
	// Backup is the UID of the VirtualMachineBackup, or of the VirtualMachineExport. One that was made again under its name is another one.
	Backup types.UID `json:"backup"`
	// Moved: what was read is published and synced.
	Moved bool `json:"moved,omitempty"`
}

// Encode returns the note as AnnotationExposed has it.
func (r ReadBackup) Encode() string {
	r.Version = ReadBackupVersion
	text, err := json.Marshal(r)
	if err != nil {
		panic(err) // strings
	}
	return string(text)
}

// DecodeReadBackup reads what Encode wrote. It refuses fields and versions that it does not know.
func DecodeReadBackup(text string) (ReadBackup, error) {
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.DisallowUnknownFields()
	var r ReadBackup
	if err := decoder.Decode(&r); err != nil {
		return ReadBackup{}, fmt.Errorf("decode %s: %w", AnnotationExposed, err)
	}
	if r.Version != ReadBackupVersion || r.Backup == "" {
		return ReadBackup{}, fmt.Errorf("decode %s: version %d, want %d, and a backup", AnnotationExposed, r.Version, ReadBackupVersion)
	}
	return r, nil
}
