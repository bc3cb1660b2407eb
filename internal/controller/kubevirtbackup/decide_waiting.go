package kubevirtbackup

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/layout"
)

// decidePending waits for everything that the backup needs. It neither locks nor attaches anything.
func decidePending(in *Input) Decision {
	deadline := pendingDeadline(in)
	refused := in.Seen.Refused && passed(in, deadline)
	fail := func(reason, message string) Decision {
		return toFinal(in, backupv1.BackupUnsuccessful, reason, message+stillLocked(in))
	}
	// A backup that fell back from Attaching first gives back what it has.
	switch {
	case in.ownsLock() && !unlockGivenUp(in, deadline):
		return Decision{Step: StepUnlock}
	case in.volumeWanted() && !refused:
		return Decision{Step: StepDetach, Volume: utilityVolume(in)}
	case in.deleting():
		return fail(backupv1.ReasonAborted, aborted(in))
	}
	o := prerequisites(in)
	if o == nil {
		o = stillAttached(in)
	}
	if o == nil {
		o = inLine(in)
	}
	if o == nil {
		o = nodeBusy(in)
	}
	switch {
	case o != nil && o.fatal:
		return fail(o.reason, o.message)
	case o != nil && passed(in, deadline):
		return fail(backupv1.ReasonDeadlineExceeded, fmt.Sprintf("Gave up after %s; the last state was: %s", in.Limits.Pending, o.message))
	case o != nil:
		return waitPending(in, o)
	case refused:
		return fail(backupv1.ReasonDeadlineExceeded,
			fmt.Sprintf("Gave up after %s; the last state was: %s", in.Limits.Pending, lastState(in, in.Backup.Status.Message)))
	case !in.finalized():
		return Decision{Step: StepHold}
	}
	return write(in, change{
		phase: backupv1.BackupAttaching, reason: backupv1.ReasonAttaching, message: attachingMessage(in, nil),
		deadline: in.Now.Add(in.Limits.Attaching),
		more: func(s *backupv1.VirtualMachineBackupStatus) {
			s.SourceName = in.machine()
			s.NodeName = in.Instance.Status.NodeName
			s.PVCName, s.PVCUID = in.Claim.Name, in.Claim.UID
			s.TrackerUID = ""
			if in.Tracker != nil {
				s.TrackerUID = in.Tracker.UID
			}
		},
	})
}

// stillAttached returns an obstacle while the volume of an earlier plan is still attached, or nil. That volume may
// be of another claim. If this backup took it for its own, detaching it would end the backup.
func stillAttached(in *Input) *obstacle {
	if in.volumeWanted() || in.volumeStatus() == nil {
		return nil
	}
	return waitFor(backupv1.ReasonAttaching, "Waiting for the volume that was attached to VirtualMachineInstance %s before this backup was planned again to be detached.", in.machine())
}

// waitPending stays in Pending, or falls back to it.
func waitPending(in *Input, o *obstacle) Decision {
	return write(in, change{
		phase: backupv1.BackupPending, reason: o.reason, message: o.message, deadline: pendingDeadline(in),
		more: func(s *backupv1.VirtualMachineBackupStatus) {
			s.SourceName, s.TrackerUID, s.NodeName = in.machine(), "", ""
			s.PVCName, s.PVCUID = "", ""
			if o.reason == backupv1.ReasonNodeBusy {
				s.NodeName = in.Instance.Status.NodeName
			}
		},
	})
}

// pendingDeadline counts from the backup's creation, so that falling back from Attaching does not lengthen the
// wait. A deleted backup only gives back what it has, and gets as much time for it as a backup in Pruned.
func pendingDeadline(in *Input) time.Time {
	deadline := in.Backup.CreationTimestamp.Add(in.Limits.Pending)
	if in.deleting() {
		deadline = earlier(deadline, in.Backup.DeletionTimestamp.Add(in.Limits.Detaching))
	}
	return deadline
}

// decideAttaching attaches the target to the guest, then takes the lock, then hands the backup to the node.
func decideAttaching(in *Input) Decision {
	if in.deleting() {
		return toPruned(in, backupv1.ReasonAborted, aborted(in))
	}
	switch o := prerequisites(in); {
	case o != nil && o.fatal:
		return toPruned(in, o.reason, o.message)
	case o != nil:
		return waitPending(in, o) // nothing is lost: Pending gives back what the backup has
	case in.Tracker != nil && in.Tracker.UID != in.Backup.Status.TrackerUID:
		return waitPending(in, waitFor(backupv1.ReasonAttaching, "VirtualMachineBackupTracker %s was replaced: planning again.", in.Tracker.Name))
	case in.Claim.UID != in.Backup.Status.PVCUID:
		return waitPending(in, waitFor(backupv1.ReasonAttaching, "PersistentVolumeClaim %s was replaced by another of the same name: planning again.", in.Claim.Name))
	case attachingOverdue(in):
		return giveUpAttaching(in)
	case !in.finalized():
		return Decision{Step: StepHold}
	case in.Tracker != nil && !controllerutil.ContainsFinalizer(in.Tracker, layout.FinalizerTracker):
		return Decision{Step: StepProtectTracker}
	case !in.volumeWanted():
		return Decision{Step: StepAttach, Volume: utilityVolume(in)}
	}
	status := in.volumeStatus()
	switch lock := in.lock(); {
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

func waitAttached(in *Input, status *kubevirtv1.VolumeStatus) Decision {
	return write(in, change{
		phase: backupv1.BackupAttaching, reason: backupv1.ReasonAttaching, message: attachingMessage(in, status),
		deadline: deadlineOr(in, in.Now, in.Limits.Attaching),
	})
}

// attachingOverdue reports whether to give up Attaching. It is checked before any step, so that a step that is
// refused again and again comes to an end. A volume that was mounted at the last moment is still used.
func attachingOverdue(in *Input) bool {
	return passed(in, deadlineOr(in, in.Now, in.Limits.Attaching)) && (in.Seen.Refused || !in.volumeMounted())
}

func giveUpAttaching(in *Input) Decision {
	return toPruned(in, backupv1.ReasonDeadlineExceeded,
		fmt.Sprintf("Gave up after %s: %s", in.Limits.Attaching, lastState(in, attachingMessage(in, in.volumeStatus()))))
}

// waitLock waits for another backup that won the race for the instance. Meanwhile this backup holds only the
// attached volume.
func waitLock(in *Input, holder string) Decision {
	deadline := pendingDeadline(in)
	message := fmt.Sprintf("Waiting for VirtualMachineBackup %s of the same virtual machine to end.", holder)
	if passed(in, deadline) {
		return toPruned(in, backupv1.ReasonDeadlineExceeded, fmt.Sprintf("Gave up after %s; the last state was: %s", in.Limits.Pending, message))
	}
	return write(in, change{phase: backupv1.BackupAttaching, reason: backupv1.ReasonOtherBackup, message: message, deadline: deadline})
}

func attachingMessage(in *Input, status *kubevirtv1.VolumeStatus) string {
	m := fmt.Sprintf("Attaching PersistentVolumeClaim %s to VirtualMachineInstance %s.", in.Backup.Spec.PVCName, in.machine())
	if status == nil {
		return m
	}
	if status.Message != "" {
		return fmt.Sprintf("%s It is %s: %s", m, volumePhase(status), status.Message)
	}
	return fmt.Sprintf("%s It is %s.", m, volumePhase(status))
}

func volumePhase(s *kubevirtv1.VolumeStatus) kubevirtv1.VolumePhase {
	if s.Phase == "" {
		return kubevirtv1.VolumePending
	}
	return s.Phase
}

func utilityVolume(in *Input) *kubevirtv1.UtilityVolume {
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
func takeLock(in *Input) Decision {
	at := in.Now.UTC().Truncate(time.Second)
	lock := &kubevirtv1.InstanceBackupStatus{BackupName: in.Backup.Name, BackupMsg: ptr.To(layout.BackupLock(in.Backup.UID))}
	if in.Tracker != nil {
		fresh := freshTime(in, at)
		if fresh.After(at) && fresh.Sub(at) <= maxNameWait {
			return Decision{Wake: fresh}
		}
		at = fresh
		lock.CheckpointName = ptr.To(layout.Checkpoint(in.Tracker.Name, at))
	}
	lock.StartTimestamp = &metav1.Time{Time: at}
	return Decision{Step: StepLock, Lock: lock}
}

// freshTime returns the first whole second, from at on, that is not in any checkpoint name of this tracker, as far
// as the tracker remembers. If the tracker does not know of such a name, refuseUsedCheckpoint finds it when the
// lock is applied.
func freshTime(in *Input, at time.Time) time.Time {
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
func toStarting(in *Input, lock *kubevirtv1.InstanceBackupStatus) Decision {
	at := in.Now
	if lock.StartTimestamp != nil {
		at = lock.StartTimestamp.Time
	}
	return write(in, change{
		phase: backupv1.BackupStarting, reason: backupv1.ReasonStarting,
		message:  fmt.Sprintf("Node %s prepares the point in time.", in.Instance.Status.NodeName),
		deadline: in.Now.Add(in.Limits.Starting),
		more: func(s *backupv1.VirtualMachineBackupStatus) {
			s.InstanceUID = in.Instance.UID
			s.NodeName = in.Instance.Status.NodeName
			s.Directory = layout.BackupDirectory(in.machine(), in.Backup.Name, at)
			s.CheckpointName = ptr.Deref(lock.CheckpointName, "")
			s.BaseCheckpoint, s.ReplacesCheckpoint, s.ManifestSHA256 = nil, "", ""
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
