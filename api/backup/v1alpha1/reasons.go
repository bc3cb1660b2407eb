package v1alpha1

// Reasons of a VirtualMachineBackup's status and conditions while it is under way:
const (
	// ReasonTrackerNotFound: the tracker that spec.backupTracker names does not exist; create it.
	ReasonTrackerNotFound = "TrackerNotFound"
	// ReasonVMNotFound: the virtual machine does not exist.
	ReasonVMNotFound = "VirtualMachineNotFound"
	// ReasonVMNotRunning: the virtual machine has no running guest; start it.
	ReasonVMNotRunning = "VirtualMachineNotRunning"
	// ReasonMigration: the guest is being moved to another node; the backup begins when it is there.
	ReasonMigration = "MigrationInProgress"
	// ReasonTrackingNotEnabled: changed block tracking is not Enabled yet; select the machine and restart it.
	ReasonTrackingNotEnabled = "ChangedBlockTrackingNotEnabled"
	// ReasonNoEligibleDisk: no disk of the machine can be tracked.
	ReasonNoEligibleDisk = "NoEligibleDisk"
	// ReasonPVCNotFound: the claim that spec.pvcName names does not exist; create it.
	ReasonPVCNotFound = "PVCNotFound"
	// ReasonGateDisabled: a feature gate is off; the message names it and says where to turn it on.
	ReasonGateDisabled = "FeatureGateDisabled"
	// ReasonNodeBusy: the machine's node already runs as many backups as it may; the namespace that has the fewest there goes first.
	ReasonNodeBusy = "NodeBusy"
	// ReasonOtherBackup: another backup holds the machine.
	ReasonOtherBackup = "OtherBackupInProgress"
	// ReasonAttaching: the target volume is being attached.
	ReasonAttaching = "AttachingTarget"
	// ReasonRequestRefused: the API server refuses a write that the backup needs, for example because an admission webhook
	// is down; the message quotes it. The controller retries until the phase's deadline.
	ReasonRequestRefused = "RequestRefused"
	// ReasonStarting: the node prepares the backup's point in time.
	ReasonStarting = "Starting"
	// ReasonCopying: the hypervisor copies the data.
	ReasonCopying = "Copying"
	// ReasonTokenSecretNotFound: the Secret that spec.tokenSecretRef names does not exist or has no token; create it.
	ReasonTokenSecretNotFound = "TokenSecretNotFound"
	// ReasonTokenSecretInvalid: the token in the Secret that spec.tokenSecretRef names has fewer than 16 characters; make a longer one.
	ReasonTokenSecretInvalid = "TokenSecretInvalid"
	// ReasonServing: clients can read the data, or soon can; the condition Ready says which.
	ReasonServing = "Serving"
	// ReasonFinishing: the tracker moves, old checkpoints are deleted, and the volume is detached.
	ReasonFinishing = "Finishing"
)

// Reasons of a backup that has ended, or is about to:
const (
	// ReasonCompleted: every disk is on the target.
	ReasonCompleted = "Completed"
	// ReasonPVCIsBlock: the target claim has volumeMode Block.
	ReasonPVCIsBlock = "PVCIsBlock"
	// ReasonInsufficientSpace: the target has less free space than the estimate; both numbers are in the message.
	ReasonInsufficientSpace = "InsufficientSpace"
	// ReasonTargetFull: the target ran out of space during the copy.
	ReasonTargetFull = "TargetFull"
	// ReasonScratchFull: there is no space left for what the guest overwrites while the backup is pulled.
	ReasonScratchFull = "ScratchFull"
	// ReasonTargetDetached: the pod that holds the target on the node ended during the copy, for example in a drain.
	ReasonTargetDetached = "TargetDetached"
	// ReasonAborted: the backup was deleted while it ran, and in pull mode while it was not Ready.
	ReasonAborted = "Aborted"
	// ReasonStopForced: the machine was stopped with force.
	ReasonStopForced = "StopForced"
	// ReasonGuestShutdown: the guest shut down during the copy.
	ReasonGuestShutdown = "GuestShutdown"
	// ReasonGuestCrashed: the guest, its QEMU or its launcher died while the backup ran.
	ReasonGuestCrashed = "GuestCrashed"
	// ReasonVMDeleted: the machine or its instance was deleted.
	ReasonVMDeleted = "VirtualMachineDeleted"
	// ReasonTTLExpired: the time of a backup in pull mode is up, and nobody has deleted it to say that its data was read.
	ReasonTTLExpired = "TTLExpired"
	// ReasonDeadlineExceeded: a phase took longer than its deadline.
	ReasonDeadlineExceeded = "DeadlineExceeded"
	// ReasonTargetInvalid: the target volume cannot take the backup, for example because it is read-only.
	ReasonTargetInvalid = "TargetInvalid"
	// ReasonTargetGone: the target claim was deleted or replaced while the backup ran, and its files are lost with it.
	ReasonTargetGone = "TargetGone"
	// ReasonTargetInUse: a virtual machine uses the target claim as a disk or for its record of changes.
	ReasonTargetInUse = "TargetInUse"
	// ReasonTargetStalled: the target took no data for so long that the backup was aborted to keep the guest running.
	ReasonTargetStalled = "TargetStalled"
	// ReasonTrackerGone: the tracker was deleted or replaced while the backup ran.
	ReasonTrackerGone = "TrackerGone"
	// ReasonHypervisorError: libvirt refused the job, or the job failed; the message quotes libvirt.
	ReasonHypervisorError = "HypervisorError"
)

// Reasons of the condition Ready that are not those of its backup:
const (
	// ReasonEndpointsReady: the endpoints answer.
	ReasonEndpointsReady = "EndpointsReady"
	// ReasonExportPending: the VirtualMachineExport of the backup does not serve yet, or not any more; the message says why.
	ReasonExportPending = "ExportPending"
	// ReasonExportForeign: the VirtualMachineExport that the backup needs exists and belongs to somebody else; delete it.
	ReasonExportForeign = "ExportForeign"
)

// Reasons of the condition ScratchSpaceLow:
const (
	// ReasonScratchLow: the message has the numbers. When nothing is left, the backup fails.
	ReasonScratchLow = "ScratchSpaceLow"
	// ReasonScratchSufficient: there is space again.
	ReasonScratchSufficient = "ScratchSpaceSufficient"
)

// Reasons of the Quiesced condition:
const (
	// ReasonFrozen: the guest agent froze every file system.
	ReasonFrozen = "Frozen"
	// ReasonQuiesceSkipped: spec.skipQuiesce asked for no freeze.
	ReasonQuiesceSkipped = "SkipQuiesce"
	// ReasonAgentAbsent: no guest agent answers; install one for backups with consistent file systems.
	ReasonAgentAbsent = "AgentNotConnected"
	// ReasonFreezeFailed: the guest agent refused or did not freeze in time.
	ReasonFreezeFailed = "FreezeFailed"
	// ReasonThawedEarly: the guest was, or may have been, thawed before the point in time.
	ReasonThawedEarly = "ThawedEarly"
)
