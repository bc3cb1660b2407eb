package backupstate

import (
	"fmt"
	"strings"
	"time"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
)

// tryAgain is the advice after a failure that leaves nothing to repair.
const tryAgain = "create another backup when the machine runs; it starts from the same base"

// tryAgainAfterEnd is the same for a guest that was stopped. Whether its record of changes was saved is known only at
// its next start: a force-deleted pod may die in the middle of a shutdown.
const tryAgainAfterEnd = tryAgain + " if the guest ended cleanly, and is full otherwise"

// Aborted says that the backup was deleted before it was Copied.
func Aborted(backup string) State {
	return state(backupv1.ReasonAborted, "VirtualMachineBackup %s was deleted before its data was complete: %s.", backup, tryAgain)
}

// AbortUnconfirmed says that the backup was deleted and that the node did not end its job in time.
func AbortUnconfirmed(backup, node string, limit time.Duration) State {
	return Aborted(backup).With(fmt.Sprintf("Node %s did not confirm the abort within %s.", node, limit))
}

// TTLExpired says that the time of a backup in pull mode is up.
func TTLExpired(backup string, ttl time.Duration) State {
	return state(backupv1.ReasonTTLExpired,
		"VirtualMachineBackup %s is %s old, which is its spec.ttl, and was not deleted by whoever reads it: %s. Clients that need longer raise spec.ttl while the backup exists.", backup, ttl, tryAgain)
}

// EndedByItself says that a backup in pull mode was said to be complete although nobody had deleted it.
func EndedByItself() State {
	return HypervisorError("The node says that the backup is complete, and nobody has said that its data was read. If the machine has run since an older version of Varve, restart it")
}

// TTLExpiredWaiting is TTLExpired for a backup that nobody could read yet. last is what it waited for.
func TTLExpiredWaiting(backup string, ttl time.Duration, last string) State {
	return state(backupv1.ReasonTTLExpired, "VirtualMachineBackup %s is %s old, which is its spec.ttl; the last state was: %s", backup, ttl, last)
}

// GaveUp says that a wait reached its deadline. last is what the backup waited for.
func GaveUp(limit time.Duration, last string) State {
	return state(backupv1.ReasonDeadlineExceeded, "Gave up after %s; the last state was: %s", limit, last)
}

// NotStarted says that the node did not begin the backup in time.
func NotStarted(node string, limit time.Duration) State {
	return state(backupv1.ReasonDeadlineExceeded, "Node %s did not start the backup within %s; check that varve-handler runs there.", node, limit)
}

// CopyStalled says that the copy made no progress and that nobody said why.
func CopyStalled(node string, limit time.Duration) State {
	return state(backupv1.ReasonDeadlineExceeded, "The copy made no progress for %s; check the target volume and varve-handler on node %s.", limit, node)
}

// TrackerDeleted says that the tracker was deleted while the backup ran. directory has the backup's files; it is empty if clients
// have read them.
func TrackerDeleted(tracker, directory string) State {
	return trackerGone(tracker, "was deleted", directory)
}

// TrackerReplaced says that the tracker was replaced while the backup ran.
func TrackerReplaced(tracker, directory string) State {
	return trackerGone(tracker, "was replaced by another of the same name", directory)
}

// TrackerMoved says that somebody else moved the tracker while the backup ran.
func TrackerMoved(tracker, checkpoint, directory string) State {
	return trackerGone(tracker, "was moved to checkpoint "+checkpoint, directory)
}

// TrackerImmovable says that the API server refused to move the tracker until the deadline. refusal is the message of
// RequestRefused.
func TrackerImmovable(tracker, refusal, directory string) State {
	return trackerGone(tracker, fmt.Sprintf("could not be moved (%s)", refusal), directory)
}

func trackerGone(tracker, what, directory string) State {
	data := "What clients have read is complete, but no later backup can build on it."
	if directory != "" {
		data = fmt.Sprintf("The files in %s are complete, but no later backup can build on them.", directory)
	}
	return state(backupv1.ReasonTrackerGone, "VirtualMachineBackupTracker %s %s while the backup ran. %s", tracker, what, data)
}

// LauncherRefused says that the launcher did not accept the backup.
func LauncherRefused(answer string) State {
	return HypervisorError("The launcher refuses the backup: " + answer)
}

// LauncherCannotPull says that the machine's launcher is of a version that knows no pull mode.
func LauncherCannotPull(machine string) State {
	return HypervisorError("The launcher of VirtualMachine " + machine + " is of an older version, which knows no pull mode: restart the machine")
}

// LauncherCannotOffer is the failure of a backup that DataUploads pull from a launcher that cannot offer its volumes one by one.
func LauncherCannotOffer(machine string) State {
	return HypervisorError("The launcher of VirtualMachine " + machine + " is of an older version, which cannot offer single volumes: restart the machine")
}

// JobLost says that the launcher answers and does not know the backup that it was copying.
func JobLost() State { return HypervisorError("The launcher does not know the backup any more") }

// BaseLostWithoutIncrement says that the launcher contradicts itself.
func BaseLostWithoutIncrement(message string) State {
	return HypervisorError("The launcher lost the base of a backup without incremental disks: " + message)
}

// HypervisorError says that libvirt or QEMU failed the job. message has their words.
func HypervisorError(message string) State {
	return quoted(backupv1.ReasonHypervisorError, message,
		"check the launcher pod's log, and create another backup; it starts from the same base if that is usable")
}

// quoted returns what the launcher said, with advice.
func quoted(reason, message, advice string) State {
	return State{Reason: reason, Message: strings.TrimSuffix(message, ".") + ": " + advice + "."}
}
