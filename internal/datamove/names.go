package datamove

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/varvebackup/varve/internal/layout"
)

// Mover is the name of Varve's data mover: the value of spec.datamover that selects it.
const Mover = "varve"

// BuiltIn is the name that Velero gives to the built-in data mover, besides "".
const BuiltIn = "velero"

// VeleroNamespace is where Velero is installed unless the settings say otherwise.
const VeleroNamespace = "velero"

// ServiceAccount is the account of mover pods, in Varve's namespace. It may read the object that a pod works for, and patch its
// report and progress (deploy/admission).
const ServiceAccount = "varve-mover"

const (
	// Finalizer keeps a DataUpload or a DataDownload until nothing that was made for it is left, and a completed DataUpload until its
	// restore point is deleted.
	Finalizer = layout.Prefix + "data-mover"
	// LabelObject is on everything that is made for a DataUpload or a DataDownload; its value is the object's UID.
	LabelObject = layout.Prefix + "data-mover-object"
	// LabelRepository is on everything that belongs to a BackupRepository; its value is the repository's name.
	LabelRepository = layout.Prefix + "backup-repository"
	// AnnotationOwner is on everything that has LabelObject: "DataUpload/namespace/name" or "DataDownload/namespace/name".
	AnnotationOwner = layout.Prefix + "data-mover-owner"
	// AnnotationReport is on a DataUpload or a DataDownload: the Report of its mover pod.
	AnnotationReport = layout.Prefix + "mover-report"
	// AnnotationExposed is on a DataUpload or a DataDownload: what its exposer must remember, in a form of the exposer's.
	AnnotationExposed = layout.Prefix + "exposed"
	// AnnotationDriver is on a DataUpload or a DataDownload: what its driver must remember, in a form of the driver's.
	AnnotationDriver = layout.Prefix + "data-mover-driver"
)

// FormatOwner returns AnnotationOwner of what is made for an object.
func FormatOwner(kind Kind, object types.NamespacedName) string {
	return string(kind) + "/" + object.String()
}

// ParseOwner returns the object that something with this AnnotationOwner was made for.
func ParseOwner(owner string) (kind Kind, object types.NamespacedName, ok bool) {
	parts := strings.Split(owner, "/")
	if len(parts) != 3 {
		return "", types.NamespacedName{}, false
	}
	return Kind(parts[0]), types.NamespacedName{Namespace: parts[1], Name: parts[2]}, true
}

// HistoryUser and HistoryHost are those of the histories of volumes, in kopia's user@host:path. The path is /namespace/claim.
const (
	HistoryUser = "varve"
	HistoryHost = "data-mover"
)

// Labels of a restore point: the name and the namespace of the DataUpload that made it.
const (
	LabelUploadName      = layout.Prefix + "data-upload-name"
	LabelUploadNamespace = layout.Prefix + "data-upload-namespace"
)

// Labels of a restore point that the backup of a whole machine made: the name of the machine and that of the
// VirtualMachineBackup, both in the namespace whose repository it is.
const (
	LabelMachine       = layout.Prefix + "virtual-machine-name"
	LabelMachineBackup = layout.Prefix + "machine-backup-name"
)

// Labels and annotations of Velero's.
const (
	// LabelBackupName is on a DataUpload: the Velero backup's name.
	LabelBackupName = "velero.io/backup-name"
	// LabelBackupUID is on a DataUpload: the Velero backup's UID.
	LabelBackupUID = "velero.io/backup-uid"
	// LabelRestoreName is on a DataDownload that Velero makes: the name of its restore. Pods that use the claims come
	// with such a restore, and wait for the volumes.
	LabelRestoreName = "velero.io/restore-name"
	// LabelRestoredVolume is the label that the selector of a target claim asks for.
	LabelRestoredVolume = "velero.io/dynamic-pv-restore"
	// LabelPodUpload and LabelPodDownload are on mover pods: the name of the object.
	LabelPodUpload   = "velero.io/data-upload"
	LabelPodDownload = "velero.io/data-download"
)

// Kind is the kind of an object that asks for data to be moved.
type Kind string

const (
	// Upload is a DataUpload.
	Upload Kind = "DataUpload"
	// Download is a DataDownload.
	Download Kind = "DataDownload"
)

// ChildName returns the name of everything that is made for an object: the claim, the pod, the snapshot and its content. A name that
// comes from the UID cannot be that of another object's children.
func ChildName(kind Kind, uid types.UID) string {
	if kind == Upload {
		return "du-" + string(uid)
	}
	return "dd-" + string(uid)
}

// Location says which BackupStorageLocation is meant.
type Location = types.NamespacedName

// RepositoryName returns the name of the BackupRepository, in Varve's namespace, that holds the volumes of a namespace in a location.
// The Secret with its Access has the same name.
func RepositoryName(volumeNamespace string, location Location) string {
	sum := sha256.Sum256([]byte(volumeNamespace + "/" + location.Namespace + "/" + location.Name))
	readable := volumeNamespace
	if len(readable) > 40 {
		readable = strings.TrimRight(readable[:40], "-.")
	}
	return "repo-" + readable + "-" + hex.EncodeToString(sum[:8])
}

// ConfigLocationNamespace is the key of a BackupRepository's repositoryConfig that has the namespace of its BackupStorageLocation.
// Velero has both in one namespace; Varve has its repositories in its own, where Velero's controller of the same kind is not.
const ConfigLocationNamespace = "backupStorageLocationNamespace"

// RepositoryPrefix returns what the names of a repository's blobs begin with, in a location whose own prefix is locationPrefix.
// Velero refuses a location with top-level directories that it does not know; plugins is the one for others.
func RepositoryPrefix(locationPrefix, volumeNamespace string) string {
	prefix := "plugins/" + Mover + "/" + volumeNamespace + "/"
	if trimmed := strings.Trim(locationPrefix, "/"); trimmed != "" {
		prefix = trimmed + "/" + prefix
	}
	return prefix
}

// labelValueLimit is how long a label's value may be.
const labelValueLimit = 63

// RestoredVolume returns a value of LabelRestoredVolume for a claim, as Velero makes it: namespace, name and random characters. One
// that is too long for a label is shortened.
func RestoredVolume(namespace, claim, random string) string {
	readable := namespace + "." + claim
	if most := labelValueLimit - 1 - len(random); len(readable) > most {
		readable = strings.TrimRight(readable[:most], "-.")
	}
	return readable + "." + random
}
