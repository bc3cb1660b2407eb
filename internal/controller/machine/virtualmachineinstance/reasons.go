package virtualmachineinstance

// Reasons of the conditions Synchronized and PodScheduled until an instance is Scheduled. They are KubeVirt's words
// where it has one.
const (
	// ReasonClaimNotFound: a claim that a disk needs does not exist; create it.
	ReasonClaimNotFound = "FailedPvcNotFound"
	// ReasonStateClaim: the claim that holds the overlays of tracked disks does not exist yet.
	ReasonStateClaim = "WaitingForStateClaim"
	// ReasonStateClaimExpanding: that claim is too small and is being expanded.
	ReasonStateClaimExpanding = "StateClaimExpanding"
	// ReasonStateClaimMoving: that claim is too small, and the overlays wait for a larger one that they move to.
	ReasonStateClaimMoving = "StateClaimMoving"
	// ReasonClaimInUse: another machine may write to a claim; stop it, or make the disk shareable in both.
	ReasonClaimInUse = "ClaimInUse"
	// ReasonClaimRecord: a claim's record of its runs cannot be read; delete the annotation.
	ReasonClaimRecord = "ClaimRecordUnreadable"
	// ReasonClaimRecordRefused: the run cannot be written on a claim; the message quotes the API server.
	ReasonClaimRecordRefused = "ClaimRecordRefused"
	// ReasonFailedCreate: the API server refused the launcher pod; the message quotes it.
	ReasonFailedCreate = "FailedCreate"
	// ReasonImagePull: an image cannot be pulled.
	ReasonImagePull = "ErrImagePull"
	// ReasonUnschedulable: no node can take the pod; the message quotes the scheduler.
	ReasonUnschedulable = "Unschedulable"
	// ReasonWaitingForVolume: a claim is not bound yet.
	ReasonWaitingForVolume = "WaitingForVolumeBinding"
	// ReasonSourcePodEnded: the launcher pod ended while a migration moved the guest.
	ReasonSourcePodEnded = "SourcePodEnded"
	// ReasonGuestNotRunning: the guest does not run yet.
	ReasonGuestNotRunning = "GuestNotRunning"
)

// Reasons of a final phase, in status.reason.
const (
	// ReasonGuestShutdown: the guest shut itself down.
	ReasonGuestShutdown = "GuestShutdown"
	// ReasonGuestStopped: the guest shut down because it was asked to.
	ReasonGuestStopped = "GuestStopped"
	// ReasonGuestKilled: the guest was asked to shut down and was killed when its grace period was over.
	ReasonGuestKilled = "GuestKilled"
	// ReasonGuestCrashed: QEMU or libvirt died.
	ReasonGuestCrashed = "GuestCrashed"
	// ReasonGuestLost: the guest left the source pod of a migration, and the target pod ended before it was the
	// instance's.
	ReasonGuestLost = "GuestLostInMigration"
	// ReasonStartFailed: the guest could not be started; the message says what to fix.
	ReasonStartFailed = "StartFailed"
	// ReasonDeletedBeforeStart: the instance was deleted before its guest was started.
	ReasonDeletedBeforeStart = "DeletedBeforeStart"
	// ReasonLauncherFailed: the launcher ended without saying why.
	ReasonLauncherFailed = "LauncherFailed"
	// ReasonInitFailed: an init container failed, for example because the kernel image lacks a file.
	ReasonInitFailed = "InitFailed"
	// ReasonPodLost: the launcher pod vanished, or was force-deleted and nobody reported its end.
	ReasonPodLost = "LauncherPodLost"
)
