package kubevirtbackup

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/backupstate"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/reconcile"
	"github.com/varvebackup/varve/internal/templatediff"
)

// decidePending waits for everything that the backup needs. It neither locks nor attaches anything.
func decidePending(in *input) decision {
	deadline := pendingDeadline(in)
	refused := in.Seen.Refused && deadlinePassed(in, deadline)
	fail := func(s backupstate.State) decision {
		if d, some := removeChildren(in); some && !refused {
			return d
		}
		return toFinal(in, backupv1.BackupUnsuccessful, s.With(stillLocked(in)))
	}
	// A backup that fell back from Attaching first gives back what it has.
	switch {
	case in.ownsLock() && !unlockGivenUp(in, deadline):
		return decision{Step: stepUnlock}
	case in.volumeWanted() && !refused:
		return decision{Step: stepDetach, Volume: utilityVolume(in)}
	case in.isBeingDeleted():
		return fail(backupstate.Aborted(in.Backup.Name))
	}
	switch o := firstObstacle(in); {
	case o != nil && o.fatal:
		return fail(o.State)
	case o != nil && deadlinePassed(in, waitDeadline(in, o.State)):
		return fail(backupstate.GaveUp(waitLimit(in, o.State), o.Message))
	case o != nil:
		return waitObstacle(in, o)
	case refused:
		return fail(backupstate.GaveUp(in.Limits.Pending, in.Backup.Status.Message))
	case !in.hasFinalizer():
		return decision{Step: stepAddFinalizer}
	}
	return toStatus(in, change{
		phase: backupv1.BackupAttaching, state: attachingState(in, nil), deadline: in.Now.Add(in.Limits.Attaching),
		more: func(s *backupv1.VirtualMachineBackupStatus) {
			s.SourceName = in.machineName()
			s.NodeName = in.Instance.Status.NodeName
			s.PVCName, s.PVCUID = in.Claim.Name, in.Claim.UID
			s.TrackerUID = ""
			if in.Tracker != nil {
				s.TrackerUID = in.Tracker.UID
			}
			s.PlaceWait = endPlaceWait(in)
		},
	})
}

// firstObstacle returns what keeps a backup in Pending, or nil. What can never be put right comes before the backup's
// turn, and everything else after it: who waits behind another backup needs nothing yet.
func firstObstacle(in *input) *obstacle {
	for _, check := range []func(*input) *obstacle{
		missingTime, unusableClaim, turnOfAnother, missingPrerequisite, stillAttached, lockedByAnother, nodeBusy,
	} {
		if o := check(in); o != nil {
			return o
		}
	}
	return nil
}

// stillAttached returns an obstacle while the volume of an earlier plan is still attached, or nil. That volume may
// be of another claim. If this backup took it for its own, detaching it would end the backup.
func stillAttached(in *input) *obstacle {
	if in.volumeWanted() || in.volumeStatus() == nil {
		return nil
	}
	return waitFor(backupstate.PreviousVolumeAttached(in.machineName()))
}

// waitObstacle waits in Pending for an obstacle to go.
func waitObstacle(in *input, o *obstacle) decision {
	d := waitPending(in, o.State)
	if o.poll {
		d.Wake = earlierTime(d.Wake, in.Now.Add(reconcile.PollInterval(in.Now.Sub(in.Backup.CreationTimestamp.Time))))
	}
	return d
}

// waitsForPlace reports whether a state is the wait for a place on the node, which has a limit of its own.
func waitsForPlace(s backupstate.State) bool { return s.Reason == backupv1.ReasonNodeBusy }

// waitLimit returns how long a backup may wait in a state of Pending.
func waitLimit(in *input, s backupstate.State) time.Duration {
	if waitsForPlace(s) {
		return in.Limits.Place
	}
	return in.Limits.Pending
}

// waitDeadline returns when a backup gives up its wait in a state of Pending.
func waitDeadline(in *input, s backupstate.State) time.Time {
	if waitsForPlace(s) {
		return beginPlaceWait(in).Since.Add(in.Limits.Place)
	}
	return pendingDeadline(in)
}

// waitPending stays in Pending, or falls back to it.
func waitPending(in *input, state backupstate.State) decision {
	wait := endPlaceWait(in)
	if waitsForPlace(state) {
		wait = beginPlaceWait(in)
	}
	return toStatus(in, change{
		phase: backupv1.BackupPending, state: state, deadline: waitDeadline(in, state),
		more: func(s *backupv1.VirtualMachineBackupStatus) {
			s.SourceName, s.TrackerUID, s.NodeName = in.machineName(), "", ""
			s.PVCName, s.PVCUID = "", ""
			s.PlaceWait = wait
			if state.Reason == backupv1.ReasonOtherBackup && in.Ahead != nil {
				s.WaitsBehind = in.Ahead.Name
			}
			if waitsForPlace(state) {
				s.NodeName = in.Instance.Status.NodeName
			}
		},
	})
}

// beginPlaceWait returns the backup's waits for a place, with the present one.
func beginPlaceWait(in *input) *backupv1.PlaceWait {
	w := ptr.Deref(in.Backup.Status.PlaceWait, backupv1.PlaceWait{})
	if w.Since == nil {
		w.Since = &metav1.Time{Time: in.Now.Truncate(time.Second)}
	}
	return &w
}

// endPlaceWait returns the backup's waits for a place, or nil if there were none. The present one is over.
func endPlaceWait(in *input) *backupv1.PlaceWait {
	waited := placeWaited(in)
	if waited == 0 {
		return nil
	}
	return &backupv1.PlaceWait{Seconds: int64(waited / time.Second)}
}

// placeWaited returns how long the backup has waited for a place, with the present wait.
func placeWaited(in *input) time.Duration {
	w := in.Backup.Status.PlaceWait
	if w == nil {
		return 0
	}
	waited := time.Duration(w.Seconds) * time.Second
	if w.Since != nil {
		waited += max(in.Now.Sub(w.Since.Time), 0)
	}
	return waited.Truncate(time.Second)
}

// pendingDeadline counts from the backup's creation, so that falling back from Attaching does not lengthen the
// wait, and leaves out the time in which it waited for a place. A deleted backup only gives back what it has, and gets as much time
// for it as a backup in Pruned.
func pendingDeadline(in *input) time.Time {
	deadline := in.Backup.CreationTimestamp.Add(in.Limits.Pending + placeWaited(in))
	if in.isBeingDeleted() {
		deadline = earlierTime(deadline, in.Backup.DeletionTimestamp.Add(in.Limits.Detaching))
	}
	return deadline
}

// decideAttaching attaches the target to the guest, then takes the lock, then hands the backup to the node.
func decideAttaching(in *input) decision {
	if in.isBeingDeleted() {
		return toPruned(in, backupstate.Aborted(in.Backup.Name))
	}
	switch o := missingPrerequisite(in); {
	case o != nil && o.fatal:
		return toPruned(in, o.State)
	case o != nil:
		return waitPending(in, o.State) // nothing is lost: Pending gives back what the backup has
	case in.Tracker != nil && in.Tracker.UID != in.Backup.Status.TrackerUID:
		return waitPending(in, backupstate.ReplanForTracker(in.Tracker.Name))
	case in.Claim.UID != in.Backup.Status.PVCUID:
		return waitPending(in, backupstate.ReplanForClaim(in.Claim.Name))
	case attachingOverdue(in):
		return giveUpAttaching(in)
	case !in.hasFinalizer():
		return decision{Step: stepAddFinalizer}
	case in.isPull() && in.Pull.TunnelSecret == nil:
		return decision{Step: stepCreateTunnelSecret, Secret: newTunnelSecret(in)}
	case in.Tracker != nil && !controllerutil.ContainsFinalizer(in.Tracker, layout.FinalizerTracker):
		return decision{Step: stepProtectTracker}
	case !in.volumeWanted():
		return decision{Step: stepAttach, Volume: utilityVolume(in)}
	}
	return decideLocking(in)
}

// decideLocking takes the lock when the volume is mounted, and hands the backup to the node.
func decideLocking(in *input) decision {
	status := in.volumeStatus()
	switch lock := in.instanceLock(); {
	case !in.volumeMounted():
		return waitAttached(in, status)
	case lock == nil:
		return takeLock(in)
	case !in.ownsLock():
		return waitLock(in, lock.BackupName)
	default:
		return toStarting(in, lock)
	}
}

func waitAttached(in *input, status *kubevirtv1.VolumeStatus) decision {
	return toStatus(in, change{
		phase: backupv1.BackupAttaching, state: attachingState(in, status),
		deadline: deadlineOr(in, in.Now, in.Limits.Attaching),
	})
}

// attachingOverdue reports whether to give up Attaching. It is checked before any step, so that a step that is
// refused again and again comes to an end. A volume that was mounted at the last moment is still used.
func attachingOverdue(in *input) bool {
	return deadlinePassed(in, deadlineOr(in, in.Now, in.Limits.Attaching)) && (in.Seen.Refused || !in.volumeMounted())
}

func giveUpAttaching(in *input) decision {
	return toPruned(in, backupstate.GaveUp(in.Limits.Attaching, lastMessage(in, attachingState(in, in.volumeStatus()).Message)))
}

// waitLock waits for another backup that won the race for the instance. Meanwhile this backup holds only the
// attached volume.
func waitLock(in *input, holder string) decision {
	deadline := pendingDeadline(in)
	state := backupstate.OtherBackupRuns(holder)
	if deadlinePassed(in, deadline) {
		return toPruned(in, backupstate.GaveUp(in.Limits.Pending, state.Message))
	}
	return toStatus(in, change{phase: backupv1.BackupAttaching, state: state, deadline: deadline})
}

func attachingState(in *input, volume *kubevirtv1.VolumeStatus) backupstate.State {
	return backupstate.Attaching(in.Backup.Spec.PVCName, in.machineName(), volume)
}

func utilityVolume(in *input) *kubevirtv1.UtilityVolume {
	return &kubevirtv1.UtilityVolume{
		Name:                              in.volumeName(),
		PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: in.Backup.Spec.PVCName},
		Type:                              ptr.To(kubevirtv1.UtilityVolumeBackup),
	}
}

// maxNameWait is how long a backup waits for a second that no checkpoint is named after. If it had to wait longer,
// the clock was set back. It then uses a name that is ahead of the clock.
const maxNameWait = 2 * time.Second

// takeLock names this attempt: its time becomes part of the names of the checkpoint and of the directory. Unless
// the clock was set back (maxNameWait), names are not ahead of the clock, so that a tracker that is created again
// cannot give out a name that its predecessor gave out.
func takeLock(in *input) decision {
	at := in.Now.UTC().Truncate(time.Second)
	lock := &kubevirtv1.InstanceBackupStatus{BackupName: in.Backup.Name, BackupMsg: ptr.To(layout.BackupLock(in.Backup.UID))}
	if in.Tracker != nil {
		fresh := freshTime(in, at)
		if fresh.After(at) && fresh.Sub(at) <= maxNameWait {
			return decision{Wake: fresh}
		}
		at = fresh
		lock.CheckpointName = ptr.To(layout.Checkpoint(in.Tracker.Name, at))
	}
	lock.StartTimestamp = &metav1.Time{Time: at}
	return decision{Step: stepLock, Lock: lock}
}

// freshTime returns the first whole second, from at on, that is not in any checkpoint name of this tracker, as far
// as the tracker remembers. If the tracker does not know of such a name, refuseUsedCheckpoint finds it when the
// lock is applied.
func freshTime(in *input, at time.Time) time.Time {
	floor := in.Tracker.CreationTimestamp.Time
	if t := in.Tracker.Status.NewestCheckpointTime; t != nil && t.After(floor) {
		floor = t.Time
	}
	if c := in.Tracker.Status.LatestCheckpoint; c != nil && c.CreationTime.After(floor) {
		floor = c.CreationTime.Time
	}
	if !at.After(floor) {
		at = floor.UTC().Truncate(time.Second).Add(time.Second)
	}
	return at
}

// toStarting hands the backup to the node. From here on, status has everything that the node needs to know.
func toStarting(in *input, lock *kubevirtv1.InstanceBackupStatus) decision {
	at := in.Now
	if lock.StartTimestamp != nil {
		at = lock.StartTimestamp.Time
	}
	return toStatus(in, change{
		phase: backupv1.BackupStarting, state: backupstate.Starting(in.Instance.Status.NodeName),
		deadline: in.Now.Add(in.Limits.Starting),
		more: func(s *backupv1.VirtualMachineBackupStatus) {
			s.InstanceUID = in.Instance.UID
			s.NodeName = in.Instance.Status.NodeName
			s.Directory = layout.BackupDirectory(in.machineName(), in.Backup.Name, at)
			s.CheckpointName = ptr.Deref(lock.CheckpointName, "")
			s.BaseCheckpoint, s.ReplacesCheckpoint, s.ManifestSHA256 = nil, "", ""
			s.ExcludedVolumes = notAttached(in)
			if in.isPull() {
				s.PullTunnelSecret = in.tunnelSecretName()
			}
			if in.Tracker == nil || in.Tracker.Status.LatestCheckpoint == nil {
				return
			}
			s.ReplacesCheckpoint = in.Tracker.Status.LatestCheckpoint.Name
			if !in.Backup.Spec.ForceFullBackup {
				s.BaseCheckpoint = in.Tracker.Status.LatestCheckpoint.DeepCopy()
			}
		},
	})
}

// notAttached returns the disks of the machine's template that its guest gets at its next start. The handler, which does not see the
// template, adds the others that are not in the backup.
func notAttached(in *input) []backupv1.ExcludedVolume {
	if in.VM == nil || in.VM.Spec.Template == nil {
		return nil
	}
	var out []backupv1.ExcludedVolume
	for _, name := range templatediff.NewDisks(&in.VM.Spec.Template.Spec, &in.Instance.Spec) {
		out = append(out, backupv1.ExcludedVolume{Name: name, Reason: backupv1.ExcludedNotAttached, Message: backupstate.VolumeNotAttached(in.machineName())})
	}
	return out
}
