package backupstate

import (
	"fmt"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
)

// fullReasons says in words why a disk's backup is full.
var fullReasons = map[backupv1.FullReason]string{
	backupv1.FullNoTracker:      "the backup names a machine, not a tracker",
	backupv1.FullNoCheckpoint:   "the tracker's first backup",
	backupv1.FullForced:         "asked for with --force-full",
	backupv1.FullNewDisk:        "the disk was not in the base",
	backupv1.FullBitmapLost:     "the record of changes was lost: the guest crashed, or its claim was deleted",
	backupv1.FullDiskReplaced:   "the disk was replaced, or written without tracking",
	backupv1.FullTargetReplaced: "the base is on another claim",
	backupv1.FullParentUnknown:  "the tracker does not record where the base is",
	backupv1.FullParentMissing:  "files of the base are not on the claim any more",
	backupv1.FullParentChanged:  "files of the base on the claim were changed",
}

// WhyFull returns a reason with its meaning. It returns an unknown reason as it is.
func WhyFull(r backupv1.FullReason) string {
	if text, known := fullReasons[r]; known {
		return fmt.Sprintf("%s: %s", r, text)
	}
	return string(r)
}
