package backupstate

import (
	"strconv"
	"strings"

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

// Serving says that clients can read the backup's point in time, or soon can.
func Serving(node string) State {
	return state(backupv1.ReasonServing, "The point in time is fixed, and node %s serves it; the condition Ready says whether the endpoints answer.", node)
}

// ServingCondition is what the condition Progressing says of a backup in pull mode.
func ServingCondition() State {
	return state(backupv1.ReasonServing, "Clients read the data from the endpoints in status.includedVolumes; delete the backup when they have it.")
}

// ReaderUnreachable is what a backup in pull mode adds to its message while its launcher has no connection to whoever serves
// the data to clients. why has the launcher's words.
func ReaderUnreachable(why string) string {
	return "The launcher is not connected to the export server: " + strings.TrimSuffix(why, ".") + "."
}

// EndpointsReady says that the endpoints answer.
func EndpointsReady() State {
	return state(backupv1.ReasonEndpointsReady, "The endpoints in status.includedVolumes answer; deleting the backup says that its data was read.")
}

// MoversMayRead is what the condition Ready says of a backup that mover pods read.
func MoversMayRead() State {
	return state(backupv1.ReasonEndpointsReady, "The launcher offers the disks to the mover pods in status.pullTunnels.")
}

// ExportPending says that the export of a backup does not serve. why is what the export says about it, or empty.
func ExportPending(export, why string) State {
	if why == "" {
		why = "it was just created."
	}
	return state(backupv1.ReasonExportPending, "VirtualMachineExport %s does not serve: %s", export, why)
}

// ExportForeign says that somebody else's export has the name of the backup's export.
func ExportForeign(export string) State {
	return waitForUser(backupv1.ReasonExportForeign, "VirtualMachineExport %s exists and does not belong to this backup: delete it.", export)
}

// SecretForeign says that somebody else's Secret has the name of the tunnel's.
func SecretForeign(secret string) State {
	return waitForUser(backupv1.ReasonAttaching, "Secret %s exists and does not belong to this backup: delete it.", secret)
}

// ScratchLow says that little space is left for what the guest overwrites.
func ScratchLow(claim string, used, free int64) State {
	return state(backupv1.ReasonScratchLow,
		"PersistentVolumeClaim %s holds %s that the guest has overwritten and has space for %s more: when it is full, the backup fails. Read faster, or use a larger claim.", claim, Moved(used), Moved(free))
}

// ScratchSufficient says that there is space for what the guest overwrites.
func ScratchSufficient(claim string, used, free int64) State {
	return state(backupv1.ReasonScratchSufficient, "PersistentVolumeClaim %s holds %s that the guest has overwritten and has space for %s more.", claim, Moved(used), Moved(free))
}

// Collected says that clients have the data of a backup in pull mode.
func Collected() State {
	return state(backupv1.ReasonFinishing, "Clients have read the data.")
}

// FinishingCollected says that a backup in pull mode cleans up.
func FinishingCollected() State {
	return state(backupv1.ReasonFinishing, "Clients have read the data; old checkpoints are being deleted, and then the volume is detached.")
}

// Pulled says that a backup in pull mode has succeeded.
func Pulled(s *backupv1.VirtualMachineBackupStatus) State {
	what := "1 disk of VirtualMachine %s was read by clients."
	if disks := len(s.IncludedVolumes); disks != 1 {
		what = strconv.Itoa(disks) + " disks of VirtualMachine %s were read by clients."
	}
	return state(backupv1.ReasonCompleted, what, s.SourceName).With(LeftOut(s.ExcludedVolumes))
}

// LeftOut names the volumes that are not in a backup. It is empty if there are none.
func LeftOut(volumes []backupv1.ExcludedVolume) string {
	if len(volumes) == 0 {
		return ""
	}
	var names []string
	for _, v := range volumes {
		names = append(names, v.Name+" ("+string(v.Reason)+")")
	}
	return "Not in the backup: " + strings.Join(names, ", ") + "; status.excludedVolumes says why."
}

// VolumeNotAttached says that a machine's template has a disk, or another claim for it, and its running guest does not.
func VolumeNotAttached(machine string) string {
	return "The template of VirtualMachine " + machine + " has the disk, or another claim for it, since after the guest's start: restart the machine, and the next backup has it."
}

// VolumeReadOnly says that the guest cannot write to a volume.
const VolumeReadOnly = "The guest cannot write to the disk, so no backup has it: back up its PersistentVolumeClaim by itself."

// VolumeShareable says that several guests may write to a volume.
const VolumeShareable = "Other guests may write to the disk as well, so its changes cannot be recorded: back it up from within a guest."

// VolumeNotTracked says that changes of a volume are not recorded and why, as far as the launcher tells.
func VolumeNotTracked(why string) string {
	if why == "" {
		why = "Its changes are not recorded: restart the machine."
	}
	return why
}

// Copied says that the node is done with the data.
func Copied() State { return state(backupv1.ReasonFinishing, "All data is on the target.") }

// Finishing says that the backup has succeeded and that what it leaves behind is cleaned up.
func Finishing() State {
	return state(backupv1.ReasonFinishing, "The data is complete on the target; old checkpoints are being deleted, and then the volume is detached.")
}

// Completed says that a backup in push mode has succeeded. Its files are on the claim.
func Completed(s *backupv1.VirtualMachineBackupStatus, claim string) State {
	what := "1 disk of VirtualMachine %s is"
	if disks := len(s.IncludedVolumes); disks != 1 {
		what = strconv.Itoa(disks) + " disks of VirtualMachine %s are"
	}
	return state(backupv1.ReasonCompleted, what+" in %s on PersistentVolumeClaim %s.", s.SourceName, s.Directory, claim).With(LeftOut(s.ExcludedVolumes))
}

// DeletingMessage is what the condition Deleting says of a deleted backup.
const DeletingMessage = "The object is deleted when the node and the target are cleaned up."
