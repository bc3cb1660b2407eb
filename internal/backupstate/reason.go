package backupstate

import (
	"slices"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
)

var (
	byController = []Component{Controller}
	byHandler    = []Component{Handler}
	byBoth       = []Component{Controller, Handler}
)

// writers says which components give a backup a reason. A component that goes on to the next phase may leave the
// reason as it is.
var writers = map[string][]Component{
	backupv1.ReasonTrackerNotFound:     byController,
	backupv1.ReasonVMNotFound:          byController,
	backupv1.ReasonVMNotRunning:        byController,
	backupv1.ReasonMigration:           byController,
	backupv1.ReasonTrackingNotEnabled:  byController,
	backupv1.ReasonNoEligibleDisk:      byBoth,
	backupv1.ReasonPVCNotFound:         byController,
	backupv1.ReasonGateDisabled:        byController,
	backupv1.ReasonNodeBusy:            byController,
	backupv1.ReasonOtherBackup:         byController,
	backupv1.ReasonAttaching:           byController,
	backupv1.ReasonRequestRefused:      byController,
	backupv1.ReasonStarting:            byBoth,
	backupv1.ReasonCopying:             byBoth,
	backupv1.ReasonServing:             byBoth,
	backupv1.ReasonTokenSecretNotFound: byController,
	backupv1.ReasonTokenSecretInvalid:  byController,
	backupv1.ReasonFinishing:           byBoth,

	backupv1.ReasonCompleted:         byController,
	backupv1.ReasonPVCIsBlock:        byController,
	backupv1.ReasonInsufficientSpace: byHandler,
	backupv1.ReasonTargetFull:        byHandler,
	backupv1.ReasonScratchFull:       byHandler,
	backupv1.ReasonTargetDetached:    byHandler,
	backupv1.ReasonAborted:           byBoth,
	backupv1.ReasonStopForced:        byHandler,
	backupv1.ReasonGuestShutdown:     byBoth,
	backupv1.ReasonGuestCrashed:      byBoth,
	backupv1.ReasonVMDeleted:         byBoth,
	backupv1.ReasonDeadlineExceeded:  byController,
	backupv1.ReasonTTLExpired:        byController,
	backupv1.ReasonTargetInvalid:     byHandler,
	backupv1.ReasonTargetGone:        byController,
	backupv1.ReasonTargetInUse:       byController,
	backupv1.ReasonTargetStalled:     byHandler,
	backupv1.ReasonTrackerGone:       byController,
	backupv1.ReasonHypervisorError:   byHandler,

	backupv1.ReasonEndpointsReady: byController,
	backupv1.ReasonExportPending:  byController,
	backupv1.ReasonExportForeign:  byController,

	backupv1.ReasonScratchLow:        byHandler,
	backupv1.ReasonScratchSufficient: byHandler,

	backupv1.ReasonFrozen:         byHandler,
	backupv1.ReasonQuiesceSkipped: byHandler,
	backupv1.ReasonAgentAbsent:    byHandler,
	backupv1.ReasonFreezeFailed:   byHandler,
	backupv1.ReasonThawedEarly:    byHandler,
}

// Writes reports whether a component gives backups this reason.
func Writes(c Component, reason string) bool { return slices.Contains(writers[reason], c) }
