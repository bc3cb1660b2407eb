package domain

import (
	"context"
	"time"
)

// AgentChannel is the name of the virtio channel of the QEMU guest agent.
const AgentChannel = "org.qemu.guest_agent.0"

// State is what a domain does.
type State string

const (
	// StateRunning: the guest runs.
	StateRunning State = "Running"
	// StatePaused: the guest's processors stand still; Reason says why.
	StatePaused State = "Paused"
	// StateShuttingDown: the guest has powered off and QEMU ends.
	StateShuttingDown State = "ShuttingDown"
	// StateShutOff: there is no QEMU; Reason says how it ended.
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
	// ReasonUser: somebody paused it.
	ReasonUser Reason = "User"
	// ReasonOther: anything else that libvirt knows.
	ReasonOther Reason = "Other"
)

// Info is what libvirt and the guest agent say of a domain.
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
	// Name is the interface's name in the instance's spec; empty for one that only the agent knows.
	Name string
	// MAC is in lower case with colons.
	MAC string
	// GuestName and IPs (without prefix length) come from the agent; empty without it.
	GuestName string
	IPs       []string
	FromAgent bool
}

// GuestOS is what the agent says of the operating system, in the words of its os-release.
type GuestOS struct {
	ID, Name, PrettyName, Version, KernelRelease string
}

// DiskInfo is a disk of the domain.
type DiskInfo struct {
	Volume string
	// Target is libvirt's name of the device, such as vda.
	Target       string
	VirtualBytes uint64
	// Tracked says that an overlay is under the disk.
	Tracked bool
}

// Checkpoint is a point in time from which libvirt knows the changes of some disks.
type Checkpoint struct {
	Name string
	// CreationTime is in whole seconds, as libvirt keeps it.
	CreationTime time.Time
	// Volumes are the disks that the checkpoint is defined on.
	Volumes []string
}

// Backup is a push backup: libvirt writes each disk's state of one moment into a file.
type Backup struct {
	// Checkpoint is the name of the checkpoint to make at that moment; empty makes none. A name must never be used twice.
	Checkpoint string
	// Disks are what is backed up. The domain's other disks are left out.
	Disks []BackupDisk
}

// BackupDisk is one disk of a backup.
type BackupDisk struct {
	Volume string
	// Target is the path of a file that CreateTarget made.
	Target string
	// Incremental is the checkpoint whose changes since then are written; empty writes the whole disk.
	Incremental string
}

// BeginFunc starts a prepared backup and returns when its moment is fixed: from then on the guest may write, and the copy
// goes on in the background until EventBackupCompleted. It is not idempotent: look at BackupJob after an error that is not one of these classes.
//
// ErrCheckpointLost: an Incremental has no usable bitmap; nothing was started. ErrNotRunning: the domain does not run.
type BeginFunc func(ctx context.Context) error

// JobInfo is how the backup job goes or how the last one ended.
type JobInfo struct {
	// Active says that a backup job runs. The other fields are its, or the last job's if none runs.
	Active bool
	// Known says that there is a job to speak of: without one all other fields are zero.
	Known bool
	// ProcessedBytes of TotalBytes are done. For an incremental disk the total is the dirty bytes.
	ProcessedBytes, TotalBytes uint64
	// TempBytes are used in scratch files (pull mode).
	TempBytes uint64
	// Err is why the last job failed, with a class if there is one; nil for an active or a successful one.
	Err error
}

// EventKind says what an Event is about.
type EventKind string

const (
	// EventLifecycle: State and Reason changed.
	EventLifecycle EventKind = "Lifecycle"
	// EventAgent: the guest agent came or went: Connected.
	EventAgent EventKind = "Agent"
	// EventBackupCompleted: a backup job ended: Err is nil on success.
	EventBackupCompleted EventKind = "BackupCompleted"
	// EventIOError: a disk failed: Volume, Message (libvirt's reason, "enospc" if space ran out), Paused.
	EventIOError EventKind = "IOError"
	// EventThreshold: a block threshold was passed: Message is the device.
	EventThreshold EventKind = "Threshold"
	// EventConnectionClosed: libvirtd is gone; no event follows.
	EventConnectionClosed EventKind = "ConnectionClosed"
	// EventResync: events were lost, because nobody read them in time; read everything again with Info and BackupJob.
	EventResync EventKind = "Resync"
)

// Event is something that happened to the domain. Which fields mean something depends on Kind.
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
