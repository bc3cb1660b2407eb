package datamove

import (
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"

	corev1 "k8s.io/api/core/v1"
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

// ImageFile is the file of a Filesystem volume that is the disk of a virtual machine. A volume with nothing else in its root
// directory, but for lost+found, is stored as a disk.
const ImageFile = "disk.img"

// Job says what a mover pod does. It holds no secret.
type Job struct {
	// Version is JobVersion.
	Version int `json:"version"`
	// Kind, Namespace, Name and UID are the object's, which the pod reads, watches for spec.cancel, and reports to.
	Kind      Kind      `json:"kind"`
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
	// VolumeMode says whether the volume is at VolumeDirectory or at VolumeDevice. It is empty for an upload from a tunnel.
	VolumeMode corev1.PersistentVolumeMode `json:"volumeMode,omitempty"`
	// SourceNamespace and SourceClaim name the history that an upload belongs to, and SourceUID, the claim's UID, distinguishes its
	// volume from every other one of these names; "" if the claim is gone.
	SourceNamespace string    `json:"sourceNamespace,omitempty"`
	SourceClaim     string    `json:"sourceClaim,omitempty"`
	SourceUID       types.UID `json:"sourceUID,omitempty"`
	// Labels are those of an upload's restore point.
	Labels map[string]string `json:"labels,omitempty"`
	// SnapshotID is what a download writes to the volume.
	SnapshotID string `json:"snapshotID,omitempty"`
	// Parallel is how many parts of the volume are moved at once; 0: as many as the mover finds good.
	Parallel int `json:"parallel,omitempty"`
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
	case j.Kind != Upload && j.Kind != Download:
		return fmt.Errorf("unknown kind %q", j.Kind)
	}
	return nil
}

// VolumePath returns where the pod has its volume.
func (j Job) VolumePath() string {
	if j.VolumeMode == corev1.PersistentVolumeBlock {
		return VolumeDevice
	}
	return path.Clean(VolumeDirectory)
}
