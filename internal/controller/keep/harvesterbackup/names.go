package harvesterbackup

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	"github.com/varvebackup/varve/internal/layout"
)

// Finalizer keeps a backup until its DataUploads are deleted.
const Finalizer = layout.Prefix + "machine-backup"

// LabelBackup is on everything that is made for a backup; its value is the backup's UID.
const LabelBackup = layout.Prefix + "machine-backup-uid"

// groupName returns the name of a backup's group of DataUploads: a DNS label that no other backup has.
func groupName(name string, uid types.UID) string {
	const readable = 40
	text := strings.ReplaceAll(name, ".", "-")
	if len(text) > readable {
		text = text[:readable]
	}
	sum := sha256.Sum256([]byte(uid))
	return strings.Trim(text, "-") + "-" + hex.EncodeToString(sum[:5])
}

// trackerName returns the name of the tracker of one machine for one location. A machine that is made again under its
// name has another one.
func trackerName(machine types.UID, location harvesterv1.LocationReference) string {
	readable := strings.Trim(location.Name[:min(len(location.Name), 40)], "-.")
	sum := sha256.Sum256([]byte(string(machine) + "/" + location.Namespace + "/" + location.Name))
	return "varve-" + readable + "-" + hex.EncodeToString(sum[:8])
}

func scratchName(group string) string { return group + "-scratch" }

// exportName returns the name of the export of a stopped machine.
func exportName(group string) string { return group + "-disks" }

func uploadName(group, volume string) string { return group + "-" + volume }
