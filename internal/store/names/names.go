// Package names says what images, volumes and their sources are called: on a disk, in CSI and in Kubernetes.
package names

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/varvebackup/varve/internal/store/disk"
)

// Driver is the name of the CSI driver.
const Driver = "store.varvebackup.io"

// TopologyNode is the label of a Kubernetes node, and the key in a volume's topology, whose value is the node's name.
const TopologyNode = Driver + "/node"

// StoreHost is the DNS name in the certificate of all stores.
const StoreHost = "store.varve"

// MetadataService is the Kubernetes Service, and MetadataPort the port, of the metadata of snapshots.
const (
	MetadataService = "varve-store-metadata"
	MetadataPort    = 8503
)

// MetadataHost returns the DNS name of that Service. It is in the certificate of all stores.
func MetadataHost(namespace string) string { return MetadataService + "." + namespace + ".svc" }

// ContextDisk is the key in a volume's context whose value is the UUID of its disk.
const ContextDisk = "diskUUID"

// ClaimAnnotation is the annotation of a Volume that names the claim that it was made for, as namespace/name. The
// status has that, too, but only after the next write.
const ClaimAnnotation = Driver + "/claim"

// Keys in the context of a volume that has an image to be read: the image's name, and its status.uuid.
const (
	ContextImage     = "backingImage"
	ContextImageUUID = "backingImageUUID"
)

const (
	// sourcePrefix begins the handles of volumes into which images are made.
	sourcePrefix = "source-"
	// readerPrefix begins the handles of volumes from which images are read.
	readerPrefix = "image-"
)

// snapshotPrefix begins the UIDs of snapshots, and cloningPrefix those of snapshots that last while a volume is cloned.
const (
	snapshotPrefix = "snapshot-"
	cloningPrefix  = "cloning-"
)

// Image returns the name that the copy of an image has on a disk. It has the UUID, so that the copy of an earlier image
// with the same name is not in the way.
func Image(image, uuid string) disk.Name { return disk.Name("image/" + image + "/" + uuid) }

// IsImage returns the image whose copy has a name on a disk.
func IsImage(n disk.Name) (image, uuid string, ok bool) {
	rest, ok := strings.CutPrefix(string(n), "image/")
	if !ok {
		return "", "", false
	}
	image, uuid, ok = strings.Cut(rest, "/")
	return image, uuid, ok
}

// SourceHead returns the name that the head has on a disk into which the first copy of an image is made.
func SourceHead(imageUUID string) disk.Name { return disk.Name("source/" + imageUUID) }

// Copy returns the name that a copy of an image has on a disk while it is read from another disk.
func Copy(imageUUID string) disk.Name { return disk.Name("copy/" + imageUUID) }

// SourceHandle returns the CSI handle of the volume into which the first copy of an image is made.
func SourceHandle(imageUUID string) string { return sourcePrefix + imageUUID }

// SnapshotUID returns the UID of a snapshot that was asked for by a name. No volume has it.
func SnapshotUID(name string) disk.UID {
	uid := disk.UID(name)
	if uid.Validate() == nil && strings.HasPrefix(name, snapshotPrefix) {
		return uid
	}
	return disk.UID(snapshotPrefix + "x-" + hashName(name))
}

// Snapshot returns the name that a snapshot of a volume has on a disk.
func Snapshot(handle string, uid disk.UID) disk.Name {
	return disk.Name("snapshot/" + handle + "/" + string(uid))
}

// IsSnapshot returns the volume, which may be gone, whose snapshot has a name on a disk.
func IsSnapshot(n disk.Name) (handle string, uid disk.UID, ok bool) {
	rest, ok := strings.CutPrefix(string(n), "snapshot/")
	if !ok {
		return "", "", false
	}
	handle, text, ok := strings.Cut(rest, "/")
	return handle, disk.UID(text), ok
}

// SnapshotHandle returns the CSI handle of a snapshot on a disk. It says which disk that is, because the volume may be
// gone.
func SnapshotHandle(on, uid disk.UID) string { return string(on) + "/" + string(uid) }

// ParseSnapshotHandle returns what SnapshotHandle was called with. No snapshot has another handle.
func ParseSnapshotHandle(handle string) (on, uid disk.UID, ok bool) {
	first, second, ok := strings.Cut(handle, "/")
	on, uid = disk.UID(first), disk.UID(second)
	return on, uid, ok && on.Validate() == nil && uid.Validate() == nil && strings.HasPrefix(second, snapshotPrefix)
}

// Cloning returns the name and the UID of the snapshot that exists while the volume with a handle is made from another
// one.
func Cloning(handle string) (disk.Name, disk.UID) {
	return disk.Name("cloning/" + handle), disk.UID(cloningPrefix + hashName(handle))
}

func hashName(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:16])
}

// VolumeHandle returns the CSI handle of a volume that was asked for by a name: the name if it can be one, and
// otherwise one that is made from it. It is a valid name of a Kubernetes object, and a valid disk.UID.
func VolumeHandle(name string) string {
	reserved := slices.ContainsFunc([]string{"-", sourcePrefix, readerPrefix, snapshotPrefix, cloningPrefix},
		func(prefix string) bool { return strings.HasPrefix(name, prefix) })
	if disk.UID(name).Validate() == nil && len(name) <= 63 && !reserved && !strings.HasSuffix(name, "-") {
		return name
	}
	return "v-" + hashName(name)
}

// Head returns the name that the head of a volume has on its disk.
func Head(handle string) disk.Name {
	if uuid, ok := strings.CutPrefix(handle, sourcePrefix); ok {
		return SourceHead(uuid)
	}
	if uid, ok := strings.CutPrefix(handle, readerPrefix); ok {
		return disk.Name("backup/" + uid)
	}
	return disk.Name("volume/" + handle)
}

// IsHead returns the handle of the volume whose head has a name on a disk.
func IsHead(n disk.Name) (handle string, ok bool) {
	if uuid, ok := strings.CutPrefix(string(n), "source/"); ok {
		return SourceHandle(uuid), true
	}
	if uid, ok := strings.CutPrefix(string(n), "backup/"); ok {
		return ReaderHandle(uid), true
	}
	return strings.CutPrefix(string(n), "volume/")
}

// IsSource says whether a handle is that of a volume into which the first copy of an image is made.
func IsSource(handle string) bool { return strings.HasPrefix(handle, sourcePrefix) }

// ReaderHandle returns the CSI handle of the volume from which an image is read for its backup, which has a UID. The
// store makes its head when it is staged, as a clone of the image, and deletes it when it is unstaged.
func ReaderHandle(backupUID string) string { return readerPrefix + backupUID }

// IsReader says whether a handle is that of a volume from which an image is read.
func IsReader(handle string) bool { return strings.HasPrefix(handle, readerPrefix) }

// IsOfImage says whether a handle is that of a volume in which an image is made or from which one is read. The
// controllers of images make and delete such volumes, and nobody else does anything with them.
func IsOfImage(handle string) bool { return IsSource(handle) || IsReader(handle) }
