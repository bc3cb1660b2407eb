package kubevirtbackup

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
)

// Reasons of the events on a VirtualMachineBackup that the controller writes; the handler has its own.
const (
	// EventWaiting: something is missing; the note says what.
	EventWaiting = "BackupWaiting"
	// EventAttaching: everything is ready and the target volume is being attached.
	EventAttaching = "BackupAttachingTarget"
	// EventStarting: the guest is locked for the backup and its node begins.
	EventStarting = "BackupStarting"
	// EventCopyFailed: the controller gave up the backup on the node's behalf.
	EventCopyFailed = "BackupCopyFailed"
	// EventFinishing: the copy ended; what is left is cleaned up.
	EventFinishing = "BackupFinishing"
	// EventDetaching: the target volume is being detached.
	EventDetaching = "BackupDetachingTarget"
	// EventCompleted: the backup succeeded.
	EventCompleted = "BackupCompleted"
	// EventExportCreated: the VirtualMachineExport that serves the backup was created, or created again.
	EventExportCreated = "BackupExportCreated"
	// EventRefused: the API server refused a write that the backup needs; the write is retried.
	EventRefused = "BackupRequestRefused"
	// EventFailed: the backup failed; the note says why and what to do.
	EventFailed = "BackupFailed"
)

// Reasons of the events on other objects.
const (
	// EventTrackerMoved: the tracker has a new latest checkpoint.
	EventTrackerMoved = "CheckpointMoved"
	// EventTrackerHeld: the tracker was deleted and stays until the backup that uses it ends.
	EventTrackerHeld = "DeletionHeld"
	// EventTooManyTrackers: the tracker's machine has more trackers than the claim with its overlays has room for.
	EventTooManyTrackers = "TooManyTrackers"
	// EventLockReleased: the lock of a backup that no longer exists or has ended was removed from the instance.
	EventLockReleased = "AbandonedBackupLockReleased"
	// EventVolumeReleased: the utility volume of a backup that no longer exists or has ended was removed from the
	// instance.
	EventVolumeReleased = "AbandonedBackupVolumeDetached"
)

const (
	normal  = corev1.EventTypeNormal
	warning = corev1.EventTypeWarning
)

type notice struct{ kind, reason, action string }

// eventFor returns the event for a status change, or nil if nobody needs to know of it. userActs says that the backup
// waits for something that somebody has to do: that is a warning, and each new message is an event, because one reason
// can have a message about something to do and one about something that goes on by itself.
func eventFor(old, now *backupv1.VirtualMachineBackupStatus, userActs bool) *notice {
	same := old.Phase == now.Phase && old.Reason == now.Reason
	if same && (!userActs || old.Message == now.Message) {
		return nil
	}
	if now.Reason == backupv1.ReasonRequestRefused {
		return &notice{warning, EventRefused, "Retry"}
	}
	switch now.Phase {
	case backupv1.BackupPending:
		if userActs {
			return &notice{warning, EventWaiting, "Wait"}
		}
		return &notice{normal, EventWaiting, "Wait"}
	case backupv1.BackupAttaching:
		if now.Reason == backupv1.ReasonOtherBackup {
			return &notice{normal, EventWaiting, "Wait"}
		}
		return &notice{normal, EventAttaching, "Attach"}
	case backupv1.BackupStarting:
		return &notice{normal, EventStarting, "Start"}
	case backupv1.BackupCopyFailed:
		return &notice{warning, EventCopyFailed, "GiveUp"}
	case backupv1.BackupPruning:
		return &notice{normal, EventFinishing, "Finish"}
	case backupv1.BackupDone:
		return &notice{normal, EventCompleted, "Complete"}
	case backupv1.BackupFailed:
		return &notice{warning, EventFailed, "Fail"}
	default:
		return nil
	}
}

// relatedMachine returns the machine, or an untyped nil if it does not exist: a nil pointer in an interface would not be
// nil.
func relatedMachine(in *input) runtime.Object {
	if in.VM == nil {
		return nil
	}
	return in.VM
}
