package harvesterschedule

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	"github.com/varvebackup/varve/internal/reconcile"
)

const (
	// runsKept is how many runs the status has at the most.
	runsKept = 30
	// messageBytes bounds a run's message.
	messageBytes = 1024
)

// recordRun writes a run down, the newest first. One that made no backup for the same reason as the one before it is
// counted there. Of several runs, the first was due at its Time and the last at its LastTime.
func recordRun(s *harvesterv1.ScheduleVMBackupStatus, run harvesterv1.ScheduledRun) {
	run.Message = reconcile.CutText(run.Message, messageBytes)
	if len(s.Runs) > 0 && run.Backup == "" && s.Runs[0].Backup == "" &&
		s.Runs[0].Result == run.Result && s.Runs[0].Reason == run.Reason {
		last := &s.Runs[0]
		last.Count = max(last.Count, 1) + max(run.Count, 1)
		last.LastTime, last.Message = ptr.To(run.Time), run.Message
		if run.LastTime != nil {
			last.LastTime = run.LastTime
		}
		return
	}
	s.Runs = append([]harvesterv1.ScheduledRun{run}, s.Runs...)
	s.Runs = s.Runs[:min(len(s.Runs), runsKept)]
}

// settleRuns notes what became of the backups of runs that had not ended, the oldest first, and counts the failures
// in a row. It returns the runs that have ended now.
func settleRuns(
	s *harvesterv1.ScheduleVMBackupStatus, backups []*harvesterv1.VirtualMachineBackup,
) (ended []harvesterv1.ScheduledRun) {
	byName := map[string]*harvesterv1.VirtualMachineBackup{}
	for _, b := range backups {
		byName[b.Name] = b
	}
	for i := len(s.Runs) - 1; i >= 0; i-- {
		run := &s.Runs[i]
		if run.Result != harvesterv1.RunStarted {
			continue
		}
		switch b := byName[run.Backup]; {
		case b != nil && b.IsReady():
			run.Result, s.Failure = harvesterv1.RunSucceeded, 0
		case b != nil && b.HasFailed():
			run.Result, run.Message = harvesterv1.RunFailed, failureOf(b)
			s.Failure++
		case b == nil || b.DeletionTimestamp != nil:
			run.Result, run.Message = harvesterv1.RunDeleted, "the backup was deleted before it had ended"
		default:
			continue
		}
		ended = append(ended, *run)
	}
	return ended
}

func failureOf(b *harvesterv1.VirtualMachineBackup) string {
	return reconcile.CutText(ptr.Deref(b.Status.Error.Message, "no reason was given"), messageBytes)
}

func skippedRun(due time.Time, reason, format string, args ...any) harvesterv1.ScheduledRun {
	return harvesterv1.ScheduledRun{
		Time: metav1.NewTime(due), Result: harvesterv1.RunSkipped, Reason: reason,
		Message: fmt.Sprintf(format, args...),
	}
}
