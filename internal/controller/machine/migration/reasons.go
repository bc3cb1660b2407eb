package migration

// Reasons of the conditions migrationBlockedByUtilityVolumes and migrationBlockedByBackup. They are KubeVirt's.
const (
	// ReasonUtilityVolumes: utility volumes are attached to the instance.
	ReasonUtilityVolumes = "UtilityVolumesPresent"
	// ReasonBackup: a backup holds the instance.
	ReasonBackup = "BackupInProgress"
)

// Reasons of the condition varvebackup.io/MigrationWaiting.
const (
	// ReasonFrozen: the guest's file systems are frozen, for example for a snapshot.
	ReasonFrozen = "GuestFrozen"
	// ReasonQueued: as many migrations run as may run at a time.
	ReasonQueued = "TooManyMigrations"
	// ReasonTargetPod: the target pod, or the pod with the token, does not run yet; the message says why.
	ReasonTargetPod = "WaitingForTargetPod"
	// ReasonTargetHandler: the target node's handler prepares the target pod.
	ReasonTargetHandler = "WaitingForTargetHandler"
	// ReasonSourceHandler: the source node's handler has not ended the migration that is to be aborted.
	ReasonSourceHandler = "WaitingForSourceHandler"
)

// Reasons of the conditions migrationAbortRequested and varvebackup.io/MigrationFailed.
const (
	// ReasonDeleted: the migration was deleted.
	ReasonDeleted = "MigrationDeleted"
	// ReasonInstanceNotFound: the instance does not exist.
	ReasonInstanceNotFound = "InstanceNotFound"
	// ReasonInstanceNotRunning: the instance does not run, or is being deleted.
	ReasonInstanceNotRunning = "InstanceNotRunning"
	// ReasonInstanceReplaced: the instance was started again since the migration began.
	ReasonInstanceReplaced = "InstanceReplaced"
	// ReasonAnotherMigration: another migration moves the instance; wait for it, or delete it.
	ReasonAnotherMigration = "AnotherMigration"
	// ReasonTimeout: what the migration waited for did not come.
	ReasonTimeout = "Timeout"
	// ReasonTargetPodEnded: the target pod ended before the migration began.
	ReasonTargetPodEnded = "TargetPodEnded"
	// ReasonFailed: the migration began and failed. The message is that of the handlers.
	ReasonFailed = "MigrationFailed"
)

// reasonQuota is the reason of the condition migrationRejectedByResourceQuota, and reasonRefused of MigrationWaiting
// while the API server refuses a pod or the Secret for another reason.
const (
	reasonQuota   = "ExceededQuota"
	reasonRefused = "RequestRefused"
)
