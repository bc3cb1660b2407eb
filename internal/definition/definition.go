package definition

import (
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	"github.com/varvebackup/varve/internal/errclass"
)

// Version is the version of Definition that this package writes and reads.
const Version = 1

// MaxBytes is the largest encoded definition. A Secret, in which it goes to the pods that store it, has 1 MiB at most.
const MaxBytes = 512 << 10

// Definition is a machine without the content of its disks.
type Definition struct {
	// Version is Version.
	Version int `json:"version"`
	// Backup is the VirtualMachineBackup that the definition was made for.
	Backup Backup `json:"backup"`
	// Machine is the virtual machine.
	Machine harvesterv1.VirtualMachineSourceSpec `json:"machine"`
	// Claims are those of the disks that the backup has, in the order of the machine's volumes.
	Claims []Claim `json:"claims"`
	// ExcludedVolumes are the machine's volumes that are not in the backup.
	ExcludedVolumes []harvesterv1.ExcludedVolume `json:"excludedVolumes,omitempty"`
	// Secrets and ConfigMaps are those that the machine refers to and that were there. They are in its namespace.
	Secrets    []Secret    `json:"secrets,omitempty"`
	ConfigMaps []ConfigMap `json:"configMaps,omitempty"`
}

// Backup names a VirtualMachineBackup of harvesterhci.io.
type Backup struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
	// Time is when the backup was asked for.
	Time time.Time `json:"time"`
}

// Claim is the claim of a disk.
type Claim struct {
	// Volume is the name of the machine's volume.
	Volume string `json:"volume"`
	// PersistentVolumeClaim is the claim as it was.
	PersistentVolumeClaim harvesterv1.PersistentVolumeClaimSourceSpec `json:"persistentVolumeClaim"`
}

// Secret is a Secret.
type Secret struct {
	Name        string            `json:"name"`
	Type        corev1.SecretType `json:"type,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Data        map[string][]byte `json:"data,omitempty"`
}

// ConfigMap is a ConfigMap.
type ConfigMap struct {
	Name        string            `json:"name"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Data        map[string]string `json:"data,omitempty"`
	BinaryData  map[string][]byte `json:"binaryData,omitempty"`
}

// Encode returns the definition in JSON. One that is larger than MaxBytes is an error of the class errclass.Invalid.
func (d *Definition) Encode() ([]byte, error) {
	out := *d
	out.Version = Version
	text, err := json.Marshal(out)
	if err != nil {
		return nil, fmt.Errorf("encode the definition of the machine: %w", err)
	}
	if len(text) > MaxBytes {
		return nil, errclass.Errorf(errclass.Invalid,
			"the definition of the machine has %d bytes with its Secrets and ConfigMaps, and may have %d: refer to smaller ones", len(text), MaxBytes)
	}
	return text, nil
}

// Decode reads what Encode wrote. What cannot be read is an error of the class errclass.Corrupt, and a later version
// one of errclass.Invalid.
func Decode(text []byte) (*Definition, error) {
	var d Definition
	if err := json.Unmarshal(text, &d); err != nil {
		return nil, errclass.Errorf(errclass.Corrupt, "decode the definition of a machine: %w", err)
	}
	if d.Version != Version {
		return nil, errclass.Errorf(errclass.Invalid,
			"the definition of the machine has version %d, and this program reads version %d: use a newer one",
			d.Version, Version)
	}
	return &d, nil
}
