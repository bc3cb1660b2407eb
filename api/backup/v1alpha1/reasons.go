package v1alpha1

// Reasons of a VirtualMachineBackup's status and conditions. What waits:
const (
	// ReasonTrackerNotFound: spec.backupTracker names no tracker; create it.
	ReasonTrackerNotFound = "TrackerNotFound"
	// ReasonVMNotFound: the virtual machine does not exist.
	ReasonVMNotFound = "VirtualMachineNotFound"
	// ReasonVMNotRunning: the virtual machine has no running guest; start it.
	ReasonVMNotRunning = "VirtualMachineNotRunning"
	// ReasonTrackingNotEnabled: changed block tracking is not Enabled yet; select the machine and restart it.
	ReasonTrackingNotEnabled = "ChangedBlockTrackingNotEnabled"
	// ReasonNoEligibleDisk: no disk of the machine can be tracked.
	ReasonNoEligibleDisk = "NoEligibleDisk"
	// ReasonPVCNotFound: spec.pvcName names no claim; create it.
	ReasonPVCNotFound = "PVCNotFound"
	// ReasonGateDisabled: a feature gate is off; the message names it and says where it is turned on.
	ReasonGateDisabled = "FeatureGateDisabled"
	// ReasonNodeBusy: as many backups as may copy at a time run on the machine's node; the oldest goes first.
	ReasonNodeBusy = "NodeBusy"
	// ReasonOtherBackup: another backup holds the machine.
	ReasonOtherBackup = "OtherBackupInProgress"
	// ReasonAttaching: the target volume is being attached.
	ReasonAttaching = "AttachingTarget"
	// ReasonRequestRefused: the API server refuses a write that the backup needs, as when an admission webhook is down or a
	// feature gate is off; the message has its words. It is tried again until the phase's deadline.
	ReasonRequestRefused = "RequestRefused"
	// ReasonStarting: the node prepares the point in time.
	ReasonStarting = "Starting"
	// ReasonCopying: data moves.
	ReasonCopying = "Copying"
	// ReasonFinishing: the tracker moves, old checkpoints go, the volume is detached.
	ReasonFinishing = "Finishing"
)

// What ends a backup:
const (
	// ReasonCompleted: every disk is on the target.
	ReasonCompleted = "Completed"
	// ReasonPVCIsBlock: the target claim has volumeMode Block.
	ReasonPVCIsBlock = "PVCIsBlock"
	// ReasonInsufficientSpace: the target has less free space than the estimate; both numbers are in the message.
	ReasonInsufficientSpace = "InsufficientSpace"
	// ReasonTargetFull: the target ran out of space while data moved.
	ReasonTargetFull = "TargetFull"
	// ReasonTargetDetached: the pod that holds the target on the node ended while data moved, as in a drain.
	ReasonTargetDetached = "TargetDetached"
	// ReasonAborted: the backup was deleted while it ran.
	ReasonAborted = "Aborted"
	// ReasonStopForced: the machine was stopped with force.
	ReasonStopForced = "StopForced"
	// ReasonGuestShutdown: the guest shut down while data moved.
	ReasonGuestShutdown = "GuestShutdown"
	// ReasonGuestCrashed: the guest, its QEMU or its launcher died while the backup ran.
	ReasonGuestCrashed = "GuestCrashed"
	// ReasonVMDeleted: the machine or its instance was deleted.
	ReasonVMDeleted = "VirtualMachineDeleted"
	// ReasonDeadlineExceeded: a phase took longer than its deadline.
	ReasonDeadlineExceeded = "DeadlineExceeded"
	// ReasonTargetInvalid: the target volume cannot take the backup, as when it is read-only.
	ReasonTargetInvalid = "TargetInvalid"
	// ReasonTargetGone: the target claim was deleted or replaced while the backup ran; the files go with it.
	ReasonTargetGone = "TargetGone"
	// ReasonTargetInUse: a virtual machine uses the target claim as a disk, or for its record of changes.
	ReasonTargetInUse = "TargetInUse"
	// ReasonTargetStalled: the target took no data for so long that the guest had to be freed from waiting for it.
	ReasonTargetStalled = "TargetStalled"
	// ReasonTrackerGone: the tracker was deleted or replaced while the backup ran.
	ReasonTrackerGone = "TrackerGone"
	// ReasonHypervisorError: libvirt refused or failed the job; the message has its words.
	ReasonHypervisorError = "HypervisorError"
)

// Reasons of the Quiesced condition:
const (
	// ReasonFrozen: the guest agent froze every file system.
	ReasonFrozen = "Frozen"
	// ReasonQuiesceSkipped: spec.skipQuiesce asked for no freeze.
	ReasonQuiesceSkipped = "SkipQuiesce"
	// ReasonAgentAbsent: no guest agent answers; install it for file system consistent backups.
	ReasonAgentAbsent = "AgentNotConnected"
	// ReasonFreezeFailed: the guest agent refused or did not freeze in time.
	ReasonFreezeFailed = "FreezeFailed"
	// ReasonThawedEarly: the guest was, or may have been, thawed before the point in time.
	ReasonThawedEarly = "ThawedEarly"
)
