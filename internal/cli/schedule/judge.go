package schedule

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	"github.com/varvebackup/varve/internal/cli/output"
)

// State is what a schedule is like, in a word.
type State string

const (
	// OK: the latest run made a backup that can be restored.
	OK State = "OK"
	// Running: a backup runs, and the run before it was good.
	Running State = "Running"
	// New: no run was due yet.
	New State = "New"
	// Suspended: its user wants no backups.
	Suspended State = "Suspended"
	// Overdue: the latest run made no backup, or none came when one was due.
	Overdue State = "Overdue"
	// Failed: the latest backup failed, or no backup can be made.
	Failed State = "Failed"
	// Deleting: the schedule is being deleted.
	Deleting State = "Deleting"
)

// NeedsAttention says whether the machine lacks a restore point that its schedule promises.
func (s State) NeedsAttention() bool { return s == Overdue || s == Failed }

// Verdict is a schedule's state, and why it is so.
type Verdict struct {
	State   State
	Message string
}

// dueGrace is how long after its due time a run may begin, enough for a controller that starts anew.
const dueGrace = 10 * time.Minute

// Judge says what a schedule is like. It goes by the newest run that has ended: one that has only begun, or that is
// tried again, makes good for none that failed.
func Judge(s *harvesterv1.ScheduleVMBackup, now time.Time) Verdict {
	if v := judgeWhole(s); v.State != "" {
		return v
	}
	if v := judgeDue(s, now); v.State != "" {
		return v
	}
	if len(s.Status.Runs) == 0 {
		return Verdict{New, "it waits for its first run"}
	}
	goesOn := ""
	if newest := &s.Status.Runs[0]; !hasEnded(newest) {
		goesOn = describeProgress(newest)
	}
	i := slices.IndexFunc(s.Status.Runs, func(r harvesterv1.ScheduledRun) bool { return hasEnded(&r) })
	switch {
	case i >= 0 && s.Status.Runs[i].Result != harvesterv1.RunSucceeded:
		state := Overdue
		if s.Status.Runs[i].Result == harvesterv1.RunFailed {
			state = Failed
		}
		message := describeRun(&s.Status.Runs[i])
		if goesOn != "" {
			message += "; " + goesOn
		}
		return Verdict{state, message}
	case goesOn != "":
		return Verdict{Running, goesOn}
	}
	return Verdict{State: OK}
}

// hasEnded says whether no backup of a run goes on, or is still to be made.
func hasEnded(r *harvesterv1.ScheduledRun) bool {
	return r.Result != harvesterv1.RunStarted && r.Result != harvesterv1.RunRetrying
}

// describeProgress says what becomes of a run that has not ended.
func describeProgress(r *harvesterv1.ScheduledRun) string {
	if r.Result == harvesterv1.RunRetrying {
		return describeRun(r)
	}
	text := "backup " + r.Backup + " runs"
	if r.Attempts > 1 {
		text += fmt.Sprintf(", attempt %d", r.Attempts)
	}
	return text
}

// judgeWhole says why a schedule makes no backups at all. Without a reason, the verdict is empty.
func judgeWhole(s *harvesterv1.ScheduleVMBackup) Verdict {
	suspension, ready := findCondition(s, harvesterv1.ConditionBackupSuspend), findCondition(s,
		harvesterv1.ConditionReady)
	switch {
	case s.DeletionTimestamp != nil:
		return Verdict{State: Deleting}
	case gaveUp(s):
		message := "it is suspended, because too many backups failed in a row"
		if i := slices.IndexFunc(s.Status.Runs, func(r harvesterv1.ScheduledRun) bool {
			return r.Result == harvesterv1.RunFailed
		}); i >= 0 {
			message += "; " + describeRun(&s.Status.Runs[i])
		}
		return Verdict{Failed, message}
	case s.Spec.Suspend:
		return Verdict{State: Suspended}
	case s.Status.Suspended:
		return Verdict{Failed, "it is not resumed: " +
			cmp.Or(suspension.Message, suspension.Reason, "no controller has dealt with it yet")}
	case ready.Status == corev1.ConditionFalse:
		return Verdict{Failed, cmp.Or(ready.Message, ready.Reason)}
	}
	return Verdict{}
}

// gaveUp says whether a schedule is suspended because too many backups failed.
func gaveUp(s *harvesterv1.ScheduleVMBackup) bool {
	reached := s.Status.Failure > 0 && s.Status.Failure >= s.Spec.MaxFailure
	reason := findCondition(s, harvesterv1.ConditionBackupSuspend).Reason
	return s.Spec.Suspend && (reached || reason == harvesterv1.ReasonMaxFailure)
}

// judgeDue says whether a due time has passed without anybody dealing with it. If not, the verdict is empty.
func judgeDue(s *harvesterv1.ScheduleVMBackup, now time.Time) Verdict {
	if len(s.Status.Runs) > 0 {
		r := &s.Status.Runs[0]
		if r.Result == harvesterv1.RunRetrying && r.RetryTime != nil && now.Sub(r.RetryTime.Time) > dueGrace {
			return Verdict{Overdue, fmt.Sprintf("the run of %s failed, and was to be tried again at %s: does the "+
				"controller run?", describeDue(r), output.FormatTime(r.RetryTime.Time))}
		}
	}
	switch next := s.Status.NextScheduleTime; {
	case next != nil && now.Sub(next.Time) > dueGrace:
		return Verdict{Overdue, fmt.Sprintf("a backup was due at %s, and none was made: does the controller run?",
			output.FormatTime(next.Time))}
	case next == nil && now.Sub(s.CreationTimestamp.Time) > dueGrace:
		return Verdict{Overdue, "it does not know when a backup is due: does the controller run?"}
	}
	return Verdict{}
}

// findCondition returns a condition, or an empty one.
func findCondition(s *harvesterv1.ScheduleVMBackup, kind harvesterv1.ConditionType) harvesterv1.Condition {
	i := slices.IndexFunc(s.Status.Conditions, func(c harvesterv1.Condition) bool { return c.Type == kind })
	if i < 0 {
		return harvesterv1.Condition{}
	}
	return s.Status.Conditions[i]
}

// outcomes are the results of runs in words.
var outcomes = map[harvesterv1.RunResult]string{
	harvesterv1.RunStarted: "is going on", harvesterv1.RunSucceeded: "made a backup", harvesterv1.RunFailed: "failed",
	harvesterv1.RunDeleted: "made no backup", harvesterv1.RunSkipped: "was skipped",
	harvesterv1.RunMissed:   "was missed",
	harvesterv1.RunRetrying: "failed, and is tried again",
}

// describeRun says what became of a run, and why.
func describeRun(r *harvesterv1.ScheduledRun) string {
	text := fmt.Sprintf("the run of %s %s", describeDue(r), cmp.Or(outcomes[r.Result], "ended as "+string(r.Result)))
	switch {
	case r.Result == harvesterv1.RunRetrying && r.RetryTime != nil:
		text += " at " + output.FormatTime(r.RetryTime.Time)
	case r.Result == harvesterv1.RunFailed && r.Attempts > 1:
		text += fmt.Sprintf(" after %d attempts", r.Attempts)
	}
	if why := describeReason(r); why != "" {
		text += ": " + why
	}
	return text
}

// describeDue says when a run was due, or several, and whether a user asked for it.
func describeDue(r *harvesterv1.ScheduledRun) string {
	text := output.FormatTime(r.Time.Time)
	if r.Reason == harvesterv1.RunRequested {
		text += " (requested)"
	}
	if r.LastTime != nil && r.Count > 1 {
		text += fmt.Sprintf(" (and %d more until %s)", r.Count-1, output.FormatTime(r.LastTime.Time))
	}
	return text
}

// describeReason says why a run made no backup that can be restored, or "".
func describeReason(r *harvesterv1.ScheduledRun) string {
	if r.Message != "" {
		return r.Message
	}
	switch {
	case r.Reason == harvesterv1.SkippedOverlap:
		return "the backup before it had not ended"
	case r.Reason == harvesterv1.SkippedSuspended:
		return "the schedule was suspended"
	case r.Reason == harvesterv1.SkippedNoMachine:
		return "the virtual machine does not exist"
	case r.Result == harvesterv1.RunDeleted:
		return "it was deleted before it ended"
	case r.Result == harvesterv1.RunMissed:
		return "no controller ran"
	case r.Reason == harvesterv1.RunRequested:
		return ""
	}
	return r.Reason
}
