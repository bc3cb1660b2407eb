package kubevirtbackup

import (
	"fmt"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	"github.com/varvebackup/varve/internal/layout"
)

// decideCopied moves the tracker once, and only if it is the tracker that the backup was planned with.
func decideCopied(in *Input) Decision {
	s := &in.Backup.Status
	succeed := func() Decision {
		return toPruning(in, backupv1.BackupSucceeded, backupv1.ReasonFinishing, "The data is complete on the target; old checkpoints go and the volume is detached.")
	}
	name := in.Backup.Spec.BackupTracker
	moved := name != "" && in.Tracker != nil && in.Tracker.Status.LatestCheckpoint != nil && in.Tracker.Status.LatestCheckpoint.BackupUID == in.Backup.UID
	if what := targetGone(in); what != "" && !moved {
		return toPruning(in, backupv1.BackupUnsuccessful, backupv1.ReasonTargetGone, what)
	}
	if name == "" {
		return succeed()
	}
	fail := func(what string) Decision {
		return toPruning(in, backupv1.BackupUnsuccessful, backupv1.ReasonTrackerGone,
			fmt.Sprintf("VirtualMachineBackupTracker %s %s while the backup ran. The files in %s are complete, but nothing can be incremental to them.", name, what, s.Directory))
	}
	switch {
	case in.Tracker == nil:
		return fail("was deleted")
	case in.Tracker.UID != s.TrackerUID:
		return fail("was replaced by another of the same name")
	}
	latest := in.Tracker.Status.LatestCheckpoint
	switch {
	case latest != nil && latest.BackupUID == in.Backup.UID:
		return succeed() // moved before a restart
	case latest != nil && latest.Name != s.ReplacesCheckpoint:
		return fail("was moved to checkpoint " + latest.Name)
	case in.Seen.Refused && passed(in, in.Seen.PhaseSince.Add(in.Limits.Pruning)):
		return fail(fmt.Sprintf("could not be moved (%s)", s.Message))
	}
	return Decision{Step: StepMoveTracker, Checkpoint: checkpoint(in)}
}

func checkpoint(in *Input) *backupv1.Checkpoint {
	s := &in.Backup.Status
	c := &backupv1.Checkpoint{Name: s.CheckpointName, BackupName: in.Backup.Name, BackupUID: in.Backup.UID}
	if s.StartTimestamp != nil {
		c.CreationTime = *s.StartTimestamp
	} else {
		c.CreationTime = metav1.NewTime(in.Now)
	}
	for i := range s.IncludedVolumes {
		c.Disks = append(c.Disks, s.IncludedVolumes[i].Name)
	}
	// All of them or none: some alone prove nothing about the target.
	if s.PVCUID != "" && s.ManifestSHA256 != "" {
		c.Target = &backupv1.BackupTarget{PVCName: s.PVCName, PVCUID: s.PVCUID, Directory: s.Directory, ManifestSHA256: s.ManifestSHA256}
	}
	return c
}

// decidePruning waits for the node to clean up, and waits less when the guest is gone. The message mentions partial
// files that the node did not confirm as removed, because the user has to delete them. Checkpoints die with the
// guest or are collected at its next start.
func decidePruning(in *Input) Decision {
	s := &in.Backup.Status
	deadline := deadlineOr(in, in.Seen.PhaseSince, in.Limits.Pruning)
	wake := deadline
	if in.guestGone() {
		wake = earlier(deadline, in.Seen.GoneSince.Add(in.Limits.PruneWithoutGuest))
	}
	if !passed(in, wake) {
		d := write(in, change{phase: s.Phase, reason: s.Reason, message: s.Message, deadline: deadline})
		d.Wake = wake
		return d
	}
	message := s.Message
	if s.Result == backupv1.BackupUnsuccessful && s.Directory != "" {
		message += fmt.Sprintf(" The node did not confirm that it removed the partial files: delete %s%s on PersistentVolumeClaim %s if it is there.",
			s.Directory, layout.PartialSuffix, in.Backup.Spec.PVCName)
	}
	return write(in, change{phase: backupv1.BackupPruned, reason: s.Reason, message: message, deadline: in.Now.Add(in.Limits.Detaching)})
}

// decidePruned gives back the volume, then the lock, and then ends the backup.
func decidePruned(in *Input) Decision {
	s := &in.Backup.Status
	// A volume that cannot be detached must not keep the machine locked. It is detached later, when the API server
	// allows it.
	refused := in.Seen.Refused && passed(in, in.Seen.PhaseSince.Add(in.Limits.Detaching))
	if in.volumeWanted() && !refused {
		return Decision{Step: StepDetach, Volume: utilityVolume(in)}
	}
	message := s.Message
	if in.volumeStatus() != nil && !in.guestGone() {
		deadline := in.Seen.PhaseSince.Add(in.Limits.Detaching)
		if !passed(in, deadline) {
			d := write(in, change{phase: s.Phase, reason: s.Reason, message: s.Message, deadline: recorded(in, deadline, in.Limits.Detaching)})
			d.Wake = deadline
			return d
		}
		message += fmt.Sprintf(" PersistentVolumeClaim %s is still attached after %s; see varve-handler on node %s.", in.Backup.Spec.PVCName, in.Limits.Detaching, in.Instance.Status.NodeName)
	}
	if in.ownsLock() && !unlockGivenUp(in, in.Seen.PhaseSince.Add(in.Limits.Detaching)) {
		return Decision{Step: StepUnlock}
	}
	message += stillLocked(in)
	if s.Result == backupv1.BackupSucceeded {
		return toFinal(in, s.Result, backupv1.ReasonCompleted, completed(in)+after(message, s))
	}
	return toFinal(in, backupv1.BackupUnsuccessful, s.Reason, message)
}

// after returns what detaching added to the message of a backup that succeeded.
func after(message string, s *backupv1.VirtualMachineBackupStatus) string {
	return message[len(s.Message):]
}

func completed(in *Input) string {
	s := &in.Backup.Status
	disks := "1 disk of VirtualMachine %s is"
	if n := len(s.IncludedVolumes); n != 1 {
		disks = strconv.Itoa(n) + " disks of VirtualMachine %s are"
	}
	return fmt.Sprintf(disks+" in %s on PersistentVolumeClaim %s.", s.SourceName, s.Directory, in.Backup.Spec.PVCName)
}
