package kubevirtbackup

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
)

// observation is what can only be seen over time.
type observation struct {
	// PhaseSince is when the present phase was first seen.
	PhaseSince time.Time
	// ProgressSince is when the copy was last seen to have moved on.
	ProgressSince time.Time
	// GoneSince is when the guest was first seen to be gone in this phase. It is zero while the guest exists.
	GoneSince time.Time
	// DeletionSince is when the backup was first seen to be deleted. It is zero until then. The time stamp of the deletion
	// is by the API server's clock, which may be minutes behind this controller's.
	DeletionSince time.Time
	// Refused says that the API server refused the last step in this phase.
	Refused bool
	// UnlockRefused is what the API server said when it refused to unlock the instance. It is empty if the last
	// attempt was not refused.
	UnlockRefused string
}

// watchdog remembers, per backup, when things were first seen. It is only in memory: after a restart of the
// controller the times start again, which lengthens a wait and never shortens it.
type watchdog struct {
	mu   sync.Mutex
	seen map[types.UID]*watched
}

type watched struct {
	observation
	phase     backupv1.BackupPhase
	processed int64
}

func newWatchdog() *watchdog { return &watchdog{seen: map[types.UID]*watched{}} }

// observe records what in shows at in.Now and returns what is known so far.
func (w *watchdog) observe(in *input) observation {
	w.mu.Lock()
	defer w.mu.Unlock()
	status := &in.Backup.Status
	phase := status.Phase
	if phase == "" {
		phase = backupv1.BackupPending
	}
	s := w.seen[in.Backup.UID]
	if s == nil || s.phase != phase {
		var deletion time.Time
		if s != nil {
			deletion = s.DeletionSince
		}
		s = &watched{phase: phase, processed: -1, observation: observation{PhaseSince: in.Now, DeletionSince: deletion}}
		w.seen[in.Backup.UID] = s
	}
	if s.DeletionSince.IsZero() && in.isBeingDeleted() {
		s.DeletionSince = in.Now
	}
	if processed := processedBytes(status); processed != s.processed {
		s.processed, s.ProgressSince = processed, in.Now
	}
	switch gone := in.guestGone(); {
	case !gone:
		s.GoneSince = time.Time{}
	case s.GoneSince.IsZero():
		s.GoneSince = in.Now
	}
	return s.observation
}

func processedBytes(s *backupv1.VirtualMachineBackupStatus) int64 {
	if s.Progress == nil {
		return 0
	}
	return s.Progress.ProcessedBytes
}

// recordAttempt records whether the API server refused the last step of the present phase, and why. A nil refusal means
// that it did not.
func (w *watchdog) recordAttempt(uid types.UID, step step, refusal error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.seen[uid]
	if s == nil {
		return
	}
	s.Refused = refusal != nil
	if step != stepUnlock {
		return
	}
	s.UnlockRefused = ""
	if refusal != nil {
		s.UnlockRefused = rootCause(refusal).Error()
	}
}

func (w *watchdog) forgetBackup(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.seen, uid)
}
