// Package manifest encodes and decodes backup.json, the file beside the disks of a backup. It describes the backup so that a chain
// can be rebuilt and checked with the files alone, without the cluster that made them.
//
// The file is written last: a directory with a valid backup.json is complete, and one without it is not a backup. Format version
// 1 is JSON with the fields of Manifest. A reader refuses any other version.
package manifest

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"time"

	"github.com/varvebackup/varve/internal/errclass"
)

// FormatVersion is the version that this package writes, and the only one that it reads.
const FormatVersion = 1

// MaxBytes bounds what Decode accepts. 256 disks fit many times.
const MaxBytes = 1 << 20

// ErrInvalid is wrapped by every error of Decode, and by those of Encode about the manifest: it cannot be relied on.
var ErrInvalid = errclass.New(errclass.Invalid, "invalid backup manifest")

// Manifest describes one backup of one virtual machine.
type Manifest struct {
	// FormatVersion is 1.
	FormatVersion int `json:"formatVersion"`
	// Namespace is the machine's namespace.
	Namespace string `json:"namespace"`
	// VM is the machine's name.
	VM string `json:"vm"`
	// Backup is the VirtualMachineBackup that made these files.
	Backup Backup `json:"backup"`
	// Tracker is the VirtualMachineBackupTracker's name. Empty if the backup used none.
	Tracker string `json:"tracker,omitempty"`
	// Checkpoint is the checkpoint that a later incremental starts from. Empty if none was made.
	Checkpoint string `json:"checkpoint,omitempty"`
	// Parent is the backup that the incremental volumes continue. Nil if every volume is full.
	Parent *Parent `json:"parent,omitempty"`
	// PointInTime is the moment, in UTC, whose content the files hold: they have every write that was finished before it and,
	// with Quiesced, no write after it.
	PointInTime time.Time `json:"pointInTime"`
	// Quiesced says that the guest's file systems were frozen at PointInTime.
	Quiesced bool `json:"quiesced"`
	// Volumes are the disks, in the order of the machine's volumes.
	Volumes []Volume `json:"volumes"`
	// ExcludedVolumes are the machine's volumes that are not in the backup. Older versions wrote none.
	ExcludedVolumes []ExcludedVolume `json:"excludedVolumes,omitempty"`
}

// ExcludedVolume is a volume of the machine that is not in the backup.
type ExcludedVolume struct {
	// Name is the volume's name in the machine's spec.
	Name string `json:"name"`
	// Reason is one of the API's ExclusionReason values.
	Reason string `json:"reason"`
	// Message says why, for people.
	Message string `json:"message,omitempty"`
}

// Backup names a VirtualMachineBackup.
type Backup struct {
	Name string `json:"name"`
	UID  string `json:"uid"`
}

// Parent is the backup that an incremental continues.
type Parent struct {
	// Checkpoint is the checkpoint that the incremental volumes start from.
	Checkpoint string `json:"checkpoint"`
	// BackupUID is the UID of the backup that made Checkpoint.
	BackupUID string `json:"backupUID"`
	// Directory is the parent's directory relative to this one. Empty if the parent was not on the same target; BackupUID is then
	// what to look for elsewhere.
	Directory string `json:"directory,omitempty"`
	// ManifestSHA256 is the hash of the parent's backup.json in lower case hex, so that no other backup can be mistaken for the
	// parent. Empty in what older versions wrote.
	ManifestSHA256 string `json:"manifestSHA256,omitempty"`
}

// Type says whether a volume's file stands alone.
type Type string

const (
	// Full holds all the data.
	Full Type = "Full"
	// Incremental holds what changed since the parent's checkpoint.
	Incremental Type = "Incremental"
)

// Volume is the file of one disk.
type Volume struct {
	// Name is the volume's name in the machine's spec.
	Name string `json:"name"`
	// Type says whether File stands alone.
	Type Type `json:"type"`
	// FullReason says why the volume is full, one of the API's FullReason values. Empty for an incremental.
	FullReason string `json:"fullReason,omitempty"`
	// VirtualBytes is the disk's size in bytes as the guest sees it.
	VirtualBytes uint64 `json:"virtualBytes"`
	// MovedBytes is how many bytes the target's file system allocated for File.
	MovedBytes uint64 `json:"movedBytes"`
	// File is the qcow2 file's name in the manifest's directory.
	File string `json:"file"`
	// SHA256 is the hash of File, including the name of its backing file, in lower case hex.
	SHA256 string `json:"sha256"`
}

// Volume returns the entry of a volume, or nil.
func (m *Manifest) Volume(name string) *Volume {
	for i := range m.Volumes {
		if m.Volumes[i].Name == name {
			return &m.Volumes[i]
		}
	}
	return nil
}

// Encode returns the file's bytes. It sets FormatVersion and refuses a manifest that Decode would refuse.
func Encode(m Manifest) ([]byte, error) {
	m.FormatVersion = FormatVersion
	m.PointInTime = m.PointInTime.UTC()
	if err := m.validate(); err != nil {
		return nil, err
	}
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode backup manifest: %w", err)
	}
	return append(data, '\n'), nil
}

// Decode reads the file's bytes. It ignores unknown fields, so that a later writer may add some.
func Decode(data []byte) (*Manifest, error) {
	if len(data) > MaxBytes {
		return nil, fmt.Errorf("%w: %d bytes, at most %d are read", ErrInvalid, len(data), MaxBytes)
	}
	var m Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if err := m.validate(); err != nil {
		return nil, err
	}
	return &m, nil
}

func (m *Manifest) validate() error {
	switch {
	case m.FormatVersion != FormatVersion:
		return fmt.Errorf("%w: format version %d, this program reads %d", ErrInvalid, m.FormatVersion, FormatVersion)
	case m.Backup.UID == "":
		return fmt.Errorf("%w: no backup UID", ErrInvalid)
	case m.VM == "":
		return fmt.Errorf("%w: no virtual machine", ErrInvalid)
	}
	seen := map[string]bool{}
	for _, v := range m.Volumes {
		if seen[v.Name] {
			return fmt.Errorf("%w: volume %q is listed twice", ErrInvalid, v.Name)
		}
		seen[v.Name] = true
		if err := m.validateVolume(v); err != nil {
			return fmt.Errorf("%w: volume %q: %w", ErrInvalid, v.Name, err)
		}
	}
	return nil
}

func (m *Manifest) validateVolume(v Volume) error {
	if v.Name == "" || v.File == "" || path.Base(v.File) != v.File || v.File == "." || v.File == ".." {
		return fmt.Errorf("file %q is not a name in the backup's directory", v.File)
	}
	if sum, err := hex.DecodeString(v.SHA256); err != nil || len(sum) != 32 {
		return fmt.Errorf("%q is not a SHA-256 in hex", v.SHA256)
	}
	switch v.Type {
	case Full:
	case Incremental:
		if m.Parent == nil {
			return errors.New("incremental without a parent")
		}
	default:
		return fmt.Errorf("type %q is neither Full nor Incremental", v.Type)
	}
	return nil
}
