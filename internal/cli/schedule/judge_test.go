package schedule

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
)

// due is when the newest run of a test was due.
var due = time.Date(2026, 11, 29, 1, 0, 0, 0, time.UTC)

// testSchedule returns a schedule whose controller has dealt with it, an hour before now. The next run is due in 23
// hours.
func testSchedule(runs ...harvesterv1.ScheduledRun) (schedule *harvesterv1.ScheduleVMBackup, now time.Time) {
	schedule = &harvesterv1.ScheduleVMBackup{}
	schedule.CreationTimestamp = metav1.NewTime(due.Add(-240 * time.Hour))
	schedule.Spec.Cron, schedule.Spec.Retain, schedule.Spec.MaxFailure = "0 1 * * *", 8, 4
	next := metav1.NewTime(due.Add(24 * time.Hour))
	schedule.Status.NextScheduleTime, schedule.Status.Runs = &next, runs
	return schedule, due.Add(time.Hour)
}

// run returns a run that was due some days before the newest one.
func run(daysBefore int, result harvesterv1.RunResult, message string) harvesterv1.ScheduledRun {
	return harvesterv1.ScheduledRun{
		Time: metav1.NewTime(due.Add(-time.Duration(daysBefore) * 24 * time.Hour)), Result: result, Backup: "b",
		Message: message,
	}
}

func condition(
	kind harvesterv1.ConditionType, status corev1.ConditionStatus, reason, message string,
) []harvesterv1.Condition {
	return []harvesterv1.Condition{{Type: kind, Status: status, Reason: reason, Message: message}}
}

func TestJudge(t *testing.T) {
	t.Parallel()
	good, bad := run(1, harvesterv1.RunSucceeded, ""), run(0, harvesterv1.RunFailed, "the bucket is full")
	started := run(0, harvesterv1.RunStarted, "")
	overlap := run(0, harvesterv1.RunSkipped, "")
	overlap.Reason = harvesterv1.SkippedOverlap
	retrying := run(0, harvesterv1.RunRetrying, "the bucket is full")
	retrying.RetryTime = &metav1.Time{Time: due.Add(65 * time.Minute)}
	again, gaveUp, requested := started, bad, run(0, harvesterv1.RunFailed, "")
	again.Attempts, gaveUp.Attempts, requested.Reason = 2, 3, harvesterv1.RunRequested
	const failed = "the run of 2026-11-29T01:00:00Z failed: the bucket is full"
	const retried = "the run of 2026-11-29T01:00:00Z failed, and is tried again at 2026-11-29T02:05:00Z: " +
		"the bucket is full"
	for name, c := range map[string]struct {
		runs []harvesterv1.ScheduledRun
		edit func(*harvesterv1.ScheduleVMBackup)
		want Verdict
	}{
		"good":       {[]harvesterv1.ScheduledRun{good, bad}, nil, Verdict{OK, ""}},
		"no run yet": {nil, nil, Verdict{New, "it waits for its first run"}},
		"failed":     {[]harvesterv1.ScheduledRun{bad, good}, nil, Verdict{Failed, failed}},
		"runs": {
			[]harvesterv1.ScheduledRun{started, good},
			nil,
			Verdict{Running, "backup b runs"},
		},
		"runs, first": {[]harvesterv1.ScheduledRun{started}, nil, Verdict{Running, "backup b runs"}},
		"runs, failed": {
			[]harvesterv1.ScheduledRun{started, bad},
			nil,
			Verdict{Failed, failed + "; backup b runs"},
		},
		"is tried again":        {[]harvesterv1.ScheduledRun{retrying, good}, nil, Verdict{Running, retried}},
		"is tried again, first": {[]harvesterv1.ScheduledRun{retrying}, nil, Verdict{Running, retried}},
		"is tried again, failed": {
			[]harvesterv1.ScheduledRun{retrying, bad},
			nil,
			Verdict{Failed, failed + "; " + retried},
		},
		"the second attempt": {
			[]harvesterv1.ScheduledRun{again, good},
			nil,
			Verdict{Running, "backup b runs, attempt 2"},
		},
		"failed in three attempts": {
			[]harvesterv1.ScheduledRun{gaveUp, good},
			nil,
			Verdict{Failed, "the run of 2026-11-29T01:00:00Z failed after 3 attempts: the bucket is full"},
		},
		"the one that was asked for failed": {
			[]harvesterv1.ScheduledRun{requested, good},
			nil,
			Verdict{Failed, "the run of 2026-11-29T01:00:00Z (requested) failed"},
		},
		"nobody has tried it again": {
			[]harvesterv1.ScheduledRun{retrying, good},
			func(s *harvesterv1.ScheduleVMBackup) { s.Status.Runs[0].RetryTime = &metav1.Time{Time: due} },
			Verdict{Overdue, "the run of 2026-11-29T01:00:00Z failed, and was to be tried again at " +
				"2026-11-29T01:00:00Z: does the controller run?"},
		},
		"missed": {
			[]harvesterv1.ScheduledRun{run(0, harvesterv1.RunMissed, ""), good},
			nil,
			Verdict{Overdue, "the run of 2026-11-29T01:00:00Z was missed: no controller ran"},
		},
		"skipped": {
			[]harvesterv1.ScheduledRun{overlap, started},
			nil,
			Verdict{Overdue, "the run of 2026-11-29T01:00:00Z was skipped: the backup before it had not ended"},
		},
		"deleted while it ran": {
			[]harvesterv1.ScheduledRun{run(0, harvesterv1.RunDeleted, ""), good},
			nil,
			Verdict{Overdue, "the run of 2026-11-29T01:00:00Z made no backup: it was deleted before it ended"},
		},
		"a minute past due": {
			[]harvesterv1.ScheduledRun{good}, func(s *harvesterv1.ScheduleVMBackup) {
				s.Status.NextScheduleTime = &metav1.Time{Time: due.Add(59 * time.Minute)}
			}, Verdict{OK, ""},
		},
		"an hour past due": {
			[]harvesterv1.ScheduledRun{good},
			func(s *harvesterv1.ScheduleVMBackup) { s.Status.NextScheduleTime = &metav1.Time{Time: due} },
			Verdict{Overdue, "a backup was due at 2026-11-29T01:00:00Z, and none was made: does the controller run?"},
		},
		"nobody has dealt with it": {
			nil, func(s *harvesterv1.ScheduleVMBackup) { s.Status.NextScheduleTime = nil },
			Verdict{Overdue, "it does not know when a backup is due: does the controller run?"},
		},
		"nobody has dealt with it, but it is new": {
			nil, func(s *harvesterv1.ScheduleVMBackup) {
				s.Status.NextScheduleTime, s.CreationTimestamp = nil, metav1.NewTime(due.Add(59*time.Minute))
			}, Verdict{New, "it waits for its first run"},
		},
		"suspended by its user": {
			[]harvesterv1.ScheduledRun{bad}, func(s *harvesterv1.ScheduleVMBackup) {
				s.Spec.Suspend, s.Status.Suspended, s.Status.NextScheduleTime, s.Status.Failure = true, true, nil, 1
				s.Status.Conditions = condition(harvesterv1.ConditionBackupSuspend, corev1.ConditionTrue,
					harvesterv1.ReasonSuspended, "")
			}, Verdict{State: Suspended},
		},
		"suspended by failures": {
			[]harvesterv1.ScheduledRun{bad}, func(s *harvesterv1.ScheduleVMBackup) {
				s.Spec.Suspend, s.Status.Suspended, s.Status.NextScheduleTime, s.Status.Failure = true, true, nil, 4
				s.Status.Conditions = condition(harvesterv1.ConditionBackupSuspend, corev1.ConditionTrue,
					harvesterv1.ReasonMaxFailure, "")
			}, Verdict{Failed, "it is suspended, because too many backups failed in a row; " + failed},
		},
		"not resumed yet": {
			[]harvesterv1.ScheduledRun{good}, func(s *harvesterv1.ScheduleVMBackup) {
				s.Status.Suspended, s.Status.NextScheduleTime = true, nil
				s.Status.Conditions = condition(harvesterv1.ConditionBackupSuspend, corev1.ConditionTrue, "x",
					"the location does not answer")
			}, Verdict{Failed, "it is not resumed: the location does not answer"},
		},
		"it can make no backups": {
			[]harvesterv1.ScheduledRun{good}, func(s *harvesterv1.ScheduleVMBackup) {
				s.Status.Conditions = condition(harvesterv1.ConditionReady, corev1.ConditionFalse, "Invalid",
					"there is no 31 February")
			}, Verdict{Failed, "there is no 31 February"},
		},
	} {
		s, now := testSchedule(c.runs...)
		if c.edit != nil {
			c.edit(s)
		}
		if got := Judge(s, now); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// The time zone is that of the expression, or else that of the annotation, or UTC.
func TestReadTimes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ cron, annotation, expression, zone string }{
		{"0 1 * * *", "", "0 1 * * *", "UTC"},
		{"0 1 * * *", "Europe/Berlin", "0 1 * * *", "Europe/Berlin"},
		{"CRON_TZ=Asia/Tokyo  0 1 * * *", "Europe/Berlin", "0 1 * * *", "Asia/Tokyo"},
		{"TZ=Asia/Tokyo @daily", "", "@daily", "Asia/Tokyo"},
	} {
		s, _ := testSchedule()
		s.Spec.Cron, s.Annotations = c.cron, map[string]string{harvesterv1.AnnotationTimeZone: c.annotation}
		if expression, zone := readTimes(s); expression != c.expression || zone != c.zone {
			t.Errorf("%s with %q: %q in %q", c.cron, c.annotation, expression, zone)
		}
	}
}
