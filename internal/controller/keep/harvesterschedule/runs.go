package harvesterschedule

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	"github.com/varvebackup/varve/internal/reconcile"
	"github.com/varvebackup/varve/internal/schedule"
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

// settleRuns notes what became of the runs that had not ended, the oldest first, and counts the failures in a row.
// times are nil if the schedule makes no backups.
func (in *input) settleRuns(p *plan, times *schedule.Times) {
	s := &p.status
	byName := map[string]*harvesterv1.VirtualMachineBackup{}
	for _, b := range in.backups {
		byName[b.Name] = b
	}
	for i := len(s.Runs) - 1; i >= 0; i-- {
		run := &s.Runs[i]
		before := run.Result
		if before == harvesterv1.RunStarted {
			in.settleBackup(run, byName[run.Backup], times)
		}
		if run.Result == harvesterv1.RunRetrying {
			if i == 0 && in.canRetry(s, times) {
				if before == harvesterv1.RunStarted {
					p.failed = append(p.failed, *run)
				}
				continue
			}
			run.Result = harvesterv1.RunFailed
		}
		if run.Result == before {
			continue
		}
		if run.Result == harvesterv1.RunSucceeded {
			s.Failure = 0
		}
		if run.Result == harvesterv1.RunFailed {
			s.Failure++
		}
		p.ended = append(p.ended, *run)
	}
}

// settleBackup notes what became of the backup of a run. It is nil if there is none any more.
func (in *input) settleBackup(
	run *harvesterv1.ScheduledRun, b *harvesterv1.VirtualMachineBackup, times *schedule.Times,
) {
	switch {
	case b != nil && b.IsReady():
		run.Result, run.Message = harvesterv1.RunSucceeded, ""
	case b != nil && b.HasFailed():
		run.Result, run.Message = harvesterv1.RunFailed, failureOf(b)
		if again := in.retryTime(run, b, times); !again.IsZero() {
			run.Result, run.RetryTime = harvesterv1.RunRetrying, ptr.To(metav1.NewTime(again))
		}
	case b == nil || b.DeletionTimestamp != nil:
		run.Result, run.Message = harvesterv1.RunDeleted, "the backup was deleted before it had ended"
	}
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
