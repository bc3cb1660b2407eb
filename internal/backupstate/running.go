package backupstate

import (
	"strconv"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
)

// Starting says that the node fixes the point in time.
func Starting(node string) State {
	return state(backupv1.ReasonStarting, "Node %s is preparing the backup's point in time.", node)
}

// Copying says that the hypervisor copies the data.
func Copying() State { return state(backupv1.ReasonCopying, "Data is being copied.") }

// Sealing says that the data is copied and that its files are made durable.
func Sealing() State {
	return state(backupv1.ReasonCopying, "The copied files are being hashed and made durable.")
}

// CopyingCondition is what the condition Progressing says in the phase Copying. The status changes with every progress
// report, and a condition that followed it would double the writes.
func CopyingCondition() State {
	return state(backupv1.ReasonCopying, "Data is being copied to the target; status.progress says how far the copy has come.")
}

// Copied says that the node is done with the data.
func Copied() State { return state(backupv1.ReasonFinishing, "All data is on the target.") }

// Finishing says that the backup has succeeded and that what it leaves behind is cleaned up.
func Finishing() State {
	return state(backupv1.ReasonFinishing, "The data is complete on the target; old checkpoints are being deleted, and then the volume is detached.")
}

// Completed says that the backup has succeeded.
func Completed(disks int, machine, directory, claim string) State {
	what := "1 disk of VirtualMachine %s is"
	if disks != 1 {
		what = strconv.Itoa(disks) + " disks of VirtualMachine %s are"
	}
	return state(backupv1.ReasonCompleted, what+" in %s on PersistentVolumeClaim %s.", machine, directory, claim)
}

// DeletingMessage is what the condition Deleting says of a deleted backup.
const DeletingMessage = "The object is deleted when the node and the target are cleaned up."
