package datamove

import (
	"fmt"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Form is how a restore point holds a volume.
type Form string

const (
	// Disk is a volume as a disk: a block device, or the image disk.img of a virtual machine.
	Disk Form = "disk"
	// Files is a volume as a tree of files.
	Files Form = "files"
)

// DiskName is the name of the only disk in a restore point of the form Disk.
const DiskName = "disk"

// SnapshotID says where the data of a volume is, within a location. A DataDownload gets nothing else from the DataUpload.
type SnapshotID struct {
	Form Form
	// Point is the ID of the restore point.
	Point string
	// Namespace is the namespace whose repository has it.
	Namespace string
}

const snapshotIDVersion = "varve1"

var pointPattern = regexp.MustCompile(`^[0-9a-f]{32}$`)

// PointID returns the ID of the restore point that a DataUpload makes. It comes from the UID, so that an upload that is repeated makes
// no second one.
func PointID(upload types.UID) (string, error) {
	id := strings.ToLower(strings.ReplaceAll(string(upload), "-", ""))
	if !pointPattern.MatchString(id) {
		return "", fmt.Errorf("UID %q is not 32 hexadecimal digits", upload)
	}
	return id, nil
}

// String returns the ID as status.snapshotID has it.
func (s SnapshotID) String() string {
	return strings.Join([]string{snapshotIDVersion, string(s.Form), s.Point, s.Namespace}, ".")
}

// ParseSnapshotID reads an ID that String wrote. An ID of another data mover, or of a later version, is an error.
func ParseSnapshotID(text string) (SnapshotID, error) {
	parts := strings.SplitN(text, ".", 4)
	if len(parts) != 4 || parts[0] != snapshotIDVersion {
		return SnapshotID{}, fmt.Errorf("snapshotID %.80q was not written by this version of the data mover %s", text, Mover)
	}
	id := SnapshotID{Form: Form(parts[1]), Point: parts[2], Namespace: parts[3]}
	switch {
	case id.Form != Disk && id.Form != Files:
		return SnapshotID{}, fmt.Errorf("snapshotID %.80q: unknown form %.80q", text, id.Form)
	case !pointPattern.MatchString(id.Point):
		return SnapshotID{}, fmt.Errorf("snapshotID %.80q: restore point %.80q is not 32 hexadecimal digits", text, id.Point)
	case len(validation.IsDNS1123Label(id.Namespace)) > 0:
		return SnapshotID{}, fmt.Errorf("snapshotID %.80q: %.80q is not a namespace", text, id.Namespace)
	}
	return id, nil
}
