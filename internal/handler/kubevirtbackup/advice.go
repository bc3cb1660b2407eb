package kubevirtbackup

import (
	"strings"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
)

// again is the advice after a failure that leaves nothing to fix.
const again = "create another backup when the machine runs; it starts from the same base"

// againAfterEnd is the same for a guest that was stopped. Whether its record of changes was saved is known only at
// its next start: a force-deleted pod may die in the middle of a shutdown.
const againAfterEnd = "create another backup when the machine runs; it starts from the same base if the guest ended cleanly, and is full otherwise"

// advice says what to do after each failure that a node finds. A full target has no entry: the launcher's message
// says it, with the numbers.
var advice = map[string]string{
	backupv1.ReasonAborted:         again,
	backupv1.ReasonTargetDetached:  again,
	backupv1.ReasonStopForced:      againAfterEnd,
	backupv1.ReasonVMDeleted:       "create another backup when the machine runs again",
	backupv1.ReasonGuestShutdown:   againAfterEnd,
	backupv1.ReasonGuestCrashed:    "create another backup when the machine runs; it is full, because the record of changes died with the guest",
	backupv1.ReasonHypervisorError: "see the launcher pod's log, and create another backup; it starts from the same base if that is usable",
	backupv1.ReasonTargetStalled:   "see why the storage behind the target claim does not answer, and create another backup; it starts from the same base",
	backupv1.ReasonTargetInvalid:   "mend the target claim or name another one, and create another backup",
	backupv1.ReasonNoEligibleDisk:  "put a disk on a claim that is writable and not shared, and restart the machine",
}

// advised returns what happened and what to do about it.
func advised(f Failure) string {
	text, ok := advice[f.Reason]
	if !ok {
		return f.Message
	}
	return strings.TrimSuffix(f.Message, ".") + ": " + text
}
