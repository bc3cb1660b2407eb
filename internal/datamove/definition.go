package datamove

import (
	"encoding/json"
	"fmt"
	"time"
)

// Keys of spec.dataMoverConfig of a DataDownload. Other keys are ignored.
const (
	// ConfigRead is what is read of the restore point that spec.snapshotID names: ReadDefinition; without it, its volume.
	ConfigRead = "read"
	// ConfigWrite is where the restore point is written to: WriteImage; without it, a volume that is made for
	// spec.targetVolume.
	ConfigWrite = "write"
	// WriteImage writes a disk to the volume of the claim that spec.targetVolume names: the source of a BackingImage,
	// which owns both the claim and the DataDownload. At the end of the device the mover pod writes how large the disk is.
	WriteImage = "image"
	// ReadDefinition reads the definition of the machine that the restore point has. No volume is made, and
	// spec.targetVolume names none: the mover pod writes what it reads into the Secret of its name, which somebody else
	// makes, of the type DefinitionSecretType.
	ReadDefinition = "definition"
)

// DisksKey is the key of that Secret that has which disks are stored with the definition: see StoredDisks. The definition
// itself has DefinitionKey.
const DisksKey = "disks"

// ReadsDefinition says whether a DataDownload with this dataMoverConfig reads a definition.
func ReadsDefinition(config map[string]string) bool { return config[ConfigRead] == ReadDefinition }

// WritesImage says whether a DataDownload with this dataMoverConfig writes to the source of an image.
func WritesImage(config map[string]string) bool { return config[ConfigWrite] == WriteImage }

// StoredDisk is a restore point of a disk.
type StoredDisk struct {
	// Claim is the name of the claim that was stored.
	Claim string `json:"claim"`
	// SnapshotID says where the disk is.
	SnapshotID string `json:"snapshotID"`
	// Bytes is the disk's size, and Time when it was stored.
	Bytes int64     `json:"bytes"`
	Time  time.Time `json:"time"`
}

// EncodeDisks returns the disks as DisksKey has them.
func EncodeDisks(disks []StoredDisk) []byte {
	text, err := json.Marshal(disks)
	if err != nil {
		panic(err) // strings, numbers and times
	}
	return text
}

// DecodeDisks reads what EncodeDisks wrote.
func DecodeDisks(text []byte) ([]StoredDisk, error) {
	var disks []StoredDisk
	if err := json.Unmarshal(text, &disks); err != nil {
		return nil, fmt.Errorf("decode the disks that are stored with a definition: %w", err)
	}
	return disks, nil
}
