package kubevirtbackup

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	"github.com/varvebackup/varve/internal/backupstate"
	"github.com/varvebackup/varve/internal/layout"
)

// decideCopied ends a backup whose data is complete.
func decideCopied(in *input) decision {
	name := in.Backup.Spec.TrackerName()
	end, gone := targetGone(in)
	switch {
	case hasMoved(in): // before a restart
	case in.isPull() && !in.isBeingDeleted():
		// Only a deletion says that clients have the data, whoever wrote this phase.
		return toPruning(in, backupv1.BackupUnsuccessful, backupstate.EndedByItself())
	case in.isPull() && !wasReadable(&in.Backup.Status):
		// A deletion means that clients have the data only if they could read it. A handler or launcher that does not know
		// the mode pull pushes to the scratch claim, and calls that complete.
		return toPruning(in, backupv1.BackupUnsuccessful, backupstate.Aborted(in.Backup.Name))
	case in.Backup.Spec.IsPulledByDataUploads() && in.Backup.Annotations[layout.AnnotationStored] != "true":
		// The same of mover pods: without this, somebody else has deleted the backup.
		return toPruning(in, backupv1.BackupUnsuccessful, backupstate.Aborted(in.Backup.Name))
	case gone:
		return toPruning(in, backupv1.BackupUnsuccessful, end)
	case name != "":
		return moveTracker(in, name)
	}
	if in.isPull() {
		return toPruning(in, backupv1.BackupSucceeded, backupstate.FinishingCollected())
	}
	return toPruning(in, backupv1.BackupSucceeded, backupstate.Finishing())
}

// hasMoved reports whether the tracker that the backup was planned with has the backup's checkpoint.
func hasMoved(in *input) bool {
	t := in.Tracker
	return t != nil && t.UID == in.Backup.Status.TrackerUID && t.Status.LatestCheckpoint != nil && t.Status.LatestCheckpoint.BackupUID == in.Backup.UID
}

// moveTracker moves the tracker once, and only if it is the tracker that the backup was planned with.
func moveTracker(in *input, name string) decision {
	s := &in.Backup.Status
	fail := func(end backupstate.State) decision { return toPruning(in, backupv1.BackupUnsuccessful, end) }
	files := s.Directory
	if in.isPull() {
		files = ""
	}
	switch {
	case in.Tracker == nil:
		return fail(backupstate.TrackerDeleted(name, files))
	case in.Tracker.UID != s.TrackerUID:
		return fail(backupstate.TrackerReplaced(name, files))
	}
	switch latest := in.Tracker.Status.LatestCheckpoint; {
	case latest != nil && latest.Name != s.ReplacesCheckpoint:
		return fail(backupstate.TrackerMoved(name, latest.Name, files))
	case in.Seen.Refused && deadlinePassed(in, in.Seen.PhaseSince.Add(in.Limits.Pruning)):
		return fail(backupstate.TrackerImmovable(name, s.Message, files))
	}
	return decision{Step: stepMoveTracker, Checkpoint: newCheckpoint(in)}
}

func newCheckpoint(in *input) *backupv1.Checkpoint {
	s := &in.Backup.Status
	c := &backupv1.Checkpoint{Name: s.CheckpointName, BackupName: in.Backup.Name, BackupUID: in.Backup.UID}
	if s.StartTimestamp != nil {
		c.CreationTime = *s.StartTimestamp
	} else {
		c.CreationTime = metav1.NewTime(in.Now)
	}
	for i := range s.IncludedVolumes {
		v := &s.IncludedVolumes[i]
		c.Disks = append(c.Disks, v.Name)
		c.Volumes = append(c.Volumes, backupv1.CheckpointVolume{VolumeName: v.Name, DiskTarget: v.DiskTarget})
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
func decidePruning(in *input) decision {
	s := &in.Backup.Status
	deadline := deadlineOr(in, in.Seen.PhaseSince, in.Limits.Pruning)
	wake := deadline
	if in.guestGone() {
		wake = earlierTime(deadline, in.Seen.GoneSince.Add(in.Limits.PruneWithoutGuest))
	}
	if !deadlinePassed(in, wake) {
		d := toStatus(in, change{phase: s.Phase, state: in.currentState(), deadline: deadline})
		d.Wake = wake
		return d
	}
	state := in.currentState()
	if (s.Result == backupv1.BackupUnsuccessful || in.isPull()) && s.Directory != "" {
		state = state.With(backupstate.PartialFilesMayStay(s.Directory+layout.PartialSuffix, in.Backup.Spec.PVCName))
	}
	return toStatus(in, change{phase: backupv1.BackupPruned, state: state, deadline: in.Now.Add(in.Limits.Detaching)})
}

// decidePruned gives back the volume, then the lock, and then ends the backup.
func decidePruned(in *input) decision {
	s := &in.Backup.Status
	// A volume that cannot be detached must not keep the machine locked. It is detached later, when the API server
	// allows it.
	deadline := in.Seen.PhaseSince.Add(in.Limits.Detaching)
	overdue := deadlinePassed(in, deadline)
	refused := in.Seen.Refused && overdue
	if in.volumeWanted() && !refused {
		return decision{Step: stepDetach, Volume: utilityVolume(in)}
	}
	if d, some := removeChildren(in); some && (!overdue || d.Step != stepNone && !refused) {
		return d
	}
	end := endOfPruned(in)
	if in.volumeStatus() != nil && !in.guestGone() {
		if !overdue {
			d := toStatus(in, change{phase: s.Phase, state: in.currentState(), deadline: recordedDeadline(in, deadline, in.Limits.Detaching)})
			d.Wake = deadline
			return d
		}
		end = end.With(backupstate.StillAttached(in.Backup.Spec.PVCName, in.Instance.Status.NodeName, in.Limits.Detaching))
	}
	if in.ownsLock() && !unlockGivenUp(in, deadline) {
		return decision{Step: stepUnlock}
	}
	result := backupv1.BackupUnsuccessful
	if s.Result == backupv1.BackupSucceeded {
		result = backupv1.BackupSucceeded
	}
	return toFinal(in, result, end.With(stillLocked(in)))
}

// endOfPruned returns how a backup has ended that is cleaned up.
func endOfPruned(in *input) backupstate.State {
	s := &in.Backup.Status
	end := in.currentState()
	stay := backupstate.PartialFilesMayStay(s.Directory+layout.PartialSuffix, in.Backup.Spec.PVCName)
	switch {
	case s.Result == backupv1.BackupSucceeded && !in.isPull():
		end = backupstate.Completed(s, in.Backup.Spec.PVCName)
	case s.Result == backupv1.BackupSucceeded && strings.Contains(s.Message, stay):
		end = backupstate.Pulled(s).With(stay)
	case s.Result == backupv1.BackupSucceeded:
		end = backupstate.Pulled(s)
	}
	if in.ownExport() != nil || in.ownTunnelSecret() != nil {
		end = end.With(backupstate.ChildrenStay(layout.BackupExport(in.Backup.Name), in.tunnelSecretName()))
	}
	return end
}
