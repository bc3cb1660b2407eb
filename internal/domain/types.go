package domain

import (
	"context"
	"time"
)

// AgentChannel is the name of the virtio channel of the QEMU guest agent.
const AgentChannel = "org.qemu.guest_agent.0"

// State is the state of a domain.
type State string

const (
	// StateRunning: the guest is running.
	StateRunning State = "Running"
	// StatePaused: the guest's processors are stopped; Reason says why.
	StatePaused State = "Paused"
	// StateShuttingDown: the guest has powered off and QEMU is exiting.
	StateShuttingDown State = "ShuttingDown"
	// StateShutOff: no QEMU is running; Reason says how it ended.
	StateShutOff State = "ShutOff"
)

// Reason says why a domain is paused or shut off. It is "" for a running domain.
type Reason string

const (
	// ReasonShutdown: the guest powered off, by itself or because it was asked to.
	ReasonShutdown Reason = "Shutdown"
	// ReasonDestroyed: Destroy ended it.
	ReasonDestroyed Reason = "Destroyed"
	// ReasonCrashed: the guest panicked or QEMU died.
	ReasonCrashed Reason = "Crashed"
	// ReasonFailed: QEMU did not start or died.
	ReasonFailed Reason = "Failed"
	// ReasonIOError: the guest was paused because a disk failed or is full.
	ReasonIOError Reason = "IOError"
	// ReasonUser: a user paused it.
	ReasonUser Reason = "User"
	// ReasonMigrating: it is paused by a migration, which is about to move it from here or to bring it here.
	ReasonMigrating Reason = "Migrating"
	// ReasonNotResumed: it was to go on, and libvirt could not let it: after a failed migration, as long as the target
	// has its disks.
	ReasonNotResumed Reason = "NotResumed"
	// ReasonMigrated: a migration has moved it from here.
	ReasonMigrated Reason = "Migrated"
	// ReasonOther: any other reason that libvirt gives.
	ReasonOther Reason = "Other"
)

// Info is what libvirt and the guest agent report about a domain.
type Info struct {
	State  State
	Reason Reason
	// AgentConnected says that the guest agent has opened its channel.
	AgentConnected bool
	Interfaces     []Interface
	// GuestOS is nil until the agent has answered. A frozen guest's agent does not answer.
	GuestOS *GuestOS
	// Disks are in the order of the domain's document.
	Disks []DiskInfo
}

// Interface is a network interface of the guest.
type Interface struct {
	// Name is the interface's name in the instance's spec. It is empty for an interface that only the agent reports.
	Name string
	// MAC is in lower case with colons.
	MAC string
	// GuestName and IPs (without prefix length) come from the agent. They are empty without it.
	GuestName string
	IPs       []string
	FromAgent bool
}

// GuestOS is what the agent reports about the operating system, in the terms of its os-release.
type GuestOS struct {
	ID, Name, PrettyName, Version, KernelRelease string
}

// DiskInfo is a disk of the domain.
type DiskInfo struct {
	Volume string
	// Target is libvirt's device name, such as vda.
	Target       string
	VirtualBytes uint64
	// Tracked says that the disk has an overlay.
	Tracked bool
}

// Checkpoint is a point in time since which libvirt tracks the changes of some disks.
type Checkpoint struct {
	Name string
	// CreationTime is in whole seconds, as libvirt keeps it.
	CreationTime time.Time
	// Volumes are the disks that the checkpoint is defined on.
	Volumes []string
}

// Backup keeps the state of each disk at one moment. In a push backup libvirt writes it into a file. In a pull backup QEMU
// serves it as an NBD export with the volume's name, until the job is aborted: that is how a pull backup succeeds.
type Backup struct {
	// Checkpoint is the name of the checkpoint to create at that moment; empty creates none. Never use a name twice.
	Checkpoint string
	// Socket makes it a pull backup: the path of the unix socket on which QEMU serves NBD. An incremental disk's export has
	// the bitmap ChangesBitmap.
	Socket string
	// Disks are the disks to back up. The domain's other disks are left out.
	Disks []BackupDisk
}

// BackupDisk is one disk of a backup.
type BackupDisk struct {
	Volume string
	// Target is the path of a file that CreateTarget made. A pull backup uses it as scratch: QEMU copies into it what the
	// guest overwrites.
	Target string
	// Incremental is a checkpoint: only the changes since then are written. Empty writes the whole disk.
	Incremental string
}

// ChangesBitmap is the name of the bitmap of an incremental disk's export.
const ChangesBitmap = "varve-changes"

// BeginFunc starts a prepared backup. It returns when the backup's moment is fixed: from then on the guest may write,
// and the copy continues in the background until EventBackupCompleted. It is not idempotent: check BackupJob after an
// error of no class listed here.
//
// ErrCheckpointLost: an Incremental has no usable bitmap; nothing was started. ErrNotRunning: the domain is not running.
type BeginFunc func(ctx context.Context) error

// JobInfo is the progress of the backup job, or the outcome of the last one.
type JobInfo struct {
	// Active says that a backup job is running. The other fields describe it, or the last job if none is running.
	Active bool
	// Known says that there is or was a job. Without one all other fields are zero.
	Known bool
	// ProcessedBytes of TotalBytes are done. For an incremental disk the total counts the dirty bytes.
	ProcessedBytes, TotalBytes uint64
	// TempBytes are used in scratch files (pull mode).
	TempBytes uint64
	// Err is why the last job failed, wrapped in a class if one fits. It is nil for an active or a successful job.
	Err error
}

// EventKind says what an Event is about.
type EventKind string

const (
	// EventLifecycle: State and Reason changed.
	EventLifecycle EventKind = "Lifecycle"
	// EventAgent: the guest agent connected or disconnected, see Connected.
	EventAgent EventKind = "Agent"
	// EventBackupCompleted: a backup job ended. Err is nil on success.
	EventBackupCompleted EventKind = "BackupCompleted"
	// EventIOError: a disk failed. Volume, Message (libvirt's reason, "enospc" if space ran out) and Paused are set.
	EventIOError EventKind = "IOError"
	// EventThreshold: a block threshold was exceeded. Message is the device.
	EventThreshold EventKind = "Threshold"
	// EventConnectionClosed: the connection to libvirtd is gone; no event follows.
	EventConnectionClosed EventKind = "ConnectionClosed"
	// EventResync: events were lost because nobody read them in time. Read everything again with Info and BackupJob.
	EventResync EventKind = "Resync"
)

// Event is something that happened to the domain. Kind decides which fields have a meaning.
type Event struct {
	Kind      EventKind
	State     State
	Reason    Reason
	Connected bool
	Err       error
	Volume    string
	Message   string
	// Paused says that an I/O error paused the guest.
	Paused bool
}
