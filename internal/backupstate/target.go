package backupstate

import (
	"fmt"
	"time"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
)

// ClaimIsBlock says that the target claim has no file system.
func ClaimIsBlock(claim string) State {
	return state(backupv1.ReasonPVCIsBlock,
		"The target PersistentVolumeClaim %s has volumeMode Block; create a backup with a claim whose volumeMode is Filesystem.", claim)
}

// TargetHoldsRecord says that the target claim is one on which Varve keeps a machine's overlays.
func TargetHoldsRecord(claim string) State {
	return state(backupv1.ReasonTargetInUse,
		"The target PersistentVolumeClaim %s holds a virtual machine's record of changes and is deleted with it; create a backup with another claim.", claim)
}

// TargetIsOwnDisk says that the target claim is a disk of the machine that is backed up.
func TargetIsOwnDisk(claim, disk string) State {
	return state(backupv1.ReasonTargetInUse,
		"The target PersistentVolumeClaim %s is disk %s of the virtual machine itself; create a backup with another claim.", claim, disk)
}

// TargetIsDisk says that the target claim is a disk of another machine.
func TargetIsDisk(claim, disk, machine string) State {
	return state(backupv1.ReasonTargetInUse,
		"The target PersistentVolumeClaim %s is disk %s of VirtualMachine %s; create a backup with another claim.", claim, disk, machine)
}

// TargetTaken says that a machine began to use the target claim as a disk while the backup ran.
func TargetTaken(claim, disk, machine string) State {
	return state(backupv1.ReasonTargetInUse,
		"VirtualMachine %s began to use the target PersistentVolumeClaim %s as disk %s; create a backup with another claim.", machine, claim, disk)
}

// TargetDeleted says that the target claim was deleted while the backup ran.
func TargetDeleted(claim string) State { return targetGone(claim, "was deleted") }

// TargetReplaced says that the target claim was replaced while the backup ran.
func TargetReplaced(claim string) State {
	return targetGone(claim, "was replaced by another of the same name")
}

// ScratchDeleted says that the claim of a backup in pull mode was deleted while clients could read the backup.
func ScratchDeleted(claim string) State { return scratchGone(claim, "was deleted") }

// ScratchReplaced says that the claim of a backup in pull mode was replaced while clients could read the backup.
func ScratchReplaced(claim string) State {
	return scratchGone(claim, "was replaced by another of the same name")
}

func scratchGone(claim, what string) State {
	return state(backupv1.ReasonTargetGone,
		"PersistentVolumeClaim %s, which holds what the guest overwrites, %s while the backup ran, and the point in time is lost; create another backup when the claim exists again.", claim, what)
}

func targetGone(claim, what string) State {
	return state(backupv1.ReasonTargetGone,
		"PersistentVolumeClaim %s %s while the backup was being written to it, and the backup's files are lost; create another backup when the claim exists again.", claim, what)
}

// TargetDetached says that the attachment pod ended while the backup ran.
func TargetDetached() State {
	return state(backupv1.ReasonTargetDetached, "The pod that holds the target on the node ended while the backup ran: %s.", tryAgain)
}

// TargetInvalid says that the target volume cannot take the backup. message has the launcher's words.
func TargetInvalid(message string) State {
	return quoted(backupv1.ReasonTargetInvalid, message, "fix the target claim or choose another one, and create another backup")
}

// TargetStalled says that the target took no data. message has the launcher's words.
func TargetStalled(message string) State {
	return quoted(backupv1.ReasonTargetStalled, message,
		"find out why the storage behind the target claim does not answer, and create another backup; it starts from the same base")
}

// InsufficientSpace says that the target has too little space to begin. message has the launcher's words, which say
// with the numbers what to do.
func InsufficientSpace(message string) State {
	return State{Reason: backupv1.ReasonInsufficientSpace, Message: message}
}

// ScratchFull says that there is no space left for what the guest overwrites while the backup is pulled. message has the
// launcher's words, which say with the numbers what to do.
func ScratchFull(message string) State {
	return State{Reason: backupv1.ReasonScratchFull, Message: message}
}

// TargetFull says that the target ran out of space. message has the launcher's words, which say with the numbers what
// to do.
func TargetFull(message string) State {
	return State{Reason: backupv1.ReasonTargetFull, Message: message}
}

// PartialFilesMayStay is what a failed backup adds to its message if nobody confirmed that its partial files are gone.
// path is relative to the root of the target volume.
func PartialFilesMayStay(path, claim string) string {
	return fmt.Sprintf("The node did not confirm that it removed the partial files: delete %s on PersistentVolumeClaim %s if it exists.", path, claim)
}

// TargetNotResponding is what a backup adds to its message while its partial files cannot be removed because the target's
// storage does not answer.
func TargetNotResponding(claim string) string {
	return fmt.Sprintf("The storage of PersistentVolumeClaim %s does not answer: the node keeps trying to remove what is partial on it.", claim)
}

// StillAttached is what a backup adds to its message if its volume could not be detached in time.
func StillAttached(claim, node string, limit time.Duration) string {
	return fmt.Sprintf("PersistentVolumeClaim %s is still attached after %s; check varve-handler on node %s.", claim, limit, node)
}

// ChildrenStay is what a backup in pull mode adds to its message if what it made could not be deleted in time.
func ChildrenStay(export, secret string) string {
	return fmt.Sprintf("VirtualMachineExport %s or Secret %s is not gone yet; they go with the backup.", export, secret)
}

// StillLocked is what a backup adds to its message if its lock could not be removed. refusal is the API server's.
func StillLocked(instance, refusal string) string {
	return fmt.Sprintf("VirtualMachineInstance %s is still locked, and its other backups wait, until the API server accepts the unlock: %s", instance, refusal)
}
