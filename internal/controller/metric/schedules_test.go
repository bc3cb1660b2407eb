package metric

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	"github.com/varvebackup/varve/test/gen"
)

// scheduleWith returns the schedule "ns/nightly" of a machine, with a status.
func scheduleWith(vm string, status harvesterv1.ScheduleVMBackupStatus) *harvesterv1.ScheduleVMBackup {
	return gen.Schedule(gen.Meta("ns", "nightly"), vm, func(o *harvesterv1.ScheduleVMBackup) { o.Status = status })
}

// scheduledRun returns a run that was due at a minute.
func scheduledRun(due int, result harvesterv1.RunResult) harvesterv1.ScheduledRun {
	return harvesterv1.ScheduledRun{Time: *at(due), Result: result}
}

// unmade returns several runs one after the other, that made no backup for the same reason.
func unmade(due, count int, result harvesterv1.RunResult, reason string) harvesterv1.ScheduledRun {
	r := scheduledRun(due, result)
	r.Count, r.Reason = count, reason
	return r
}

const (
	userSays     = "varve_schedule_suspended{namespace=ns,reason=user,schedule=nightly,vm=vm} "
	failuresSay  = "varve_schedule_suspended{namespace=ns,reason=failures,schedule=nightly,vm=vm} "
	waitingSays  = "varve_schedule_suspended{namespace=ns,reason=waiting,schedule=nightly,vm=vm} "
	ofTheNightly = "{namespace=ns,schedule=nightly,vm=vm} "
)

func TestSchedules_tellTheirState(t *testing.T) {
	t.Parallel()
	suspension := func(reason string) []harvesterv1.Condition {
		return []harvesterv1.Condition{
			{Type: harvesterv1.ConditionReady}, {Type: harvesterv1.ConditionBackupSuspend, Reason: reason},
		}
	}
	for name, c := range map[string]struct {
		status harvesterv1.ScheduleVMBackupStatus
		want   []string
	}{
		"new": {
			harvesterv1.ScheduleVMBackupStatus{NextScheduleTime: at(7)},
			[]string{
				"varve_schedule_next_run_timestamp_seconds" + ofTheNightly + "7",
				"varve_schedule_consecutive_failures" + ofTheNightly + "0", userSays + "0", failuresSay + "0", waitingSays + "0",
			},
		},
		"good": {
			harvesterv1.ScheduleVMBackupStatus{
				NextScheduleTime: at(7), LastSuccessfulTime: at(3),
				Runs: []harvesterv1.ScheduledRun{scheduledRun(2, harvesterv1.RunSucceeded)},
			},
			[]string{
				"varve_schedule_next_run_timestamp_seconds" + ofTheNightly + "7",
				"varve_schedule_last_success_timestamp_seconds" + ofTheNightly + "3",
				"varve_schedule_consecutive_failures" + ofTheNightly + "0", userSays + "0", failuresSay + "0", waitingSays + "0",
			},
		},
		"failed too often": {
			harvesterv1.ScheduleVMBackupStatus{
				LastSuccessfulTime: at(3), Failure: 4, Suspended: true,
				Conditions: suspension(harvesterv1.ReasonMaxFailure),
				Runs:       []harvesterv1.ScheduledRun{scheduledRun(9, harvesterv1.RunFailed)},
			},
			[]string{
				"varve_schedule_last_success_timestamp_seconds" + ofTheNightly + "3",
				"varve_schedule_unmet_since_timestamp_seconds" + ofTheNightly + "9",
				"varve_schedule_consecutive_failures" + ofTheNightly + "4", userSays + "0", failuresSay + "1", waitingSays + "0",
			},
		},
		"suspended by its user": {
			harvesterv1.ScheduleVMBackupStatus{Suspended: true, Conditions: suspension(harvesterv1.ReasonSuspended)},
			[]string{
				"varve_schedule_consecutive_failures" + ofTheNightly + "0", userSays + "1", failuresSay + "0", waitingSays + "0",
			},
		},
		"to go on, and its location is away": {
			harvesterv1.ScheduleVMBackupStatus{Suspended: true, Conditions: suspension(harvesterv1.ReasonSuspended)},
			[]string{
				"varve_schedule_consecutive_failures" + ofTheNightly + "0", userSays + "0", failuresSay + "0", waitingSays + "1",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := NewSchedules()
			o := scheduleWith("vm", c.status)
			o.Spec.Suspend = name == "suspended by its user"
			s.Record(o, o)
			mustEqual(t, series(t, s, "varve_schedule_"), c.want)
		})
	}
}

func TestUnmetSince(t *testing.T) {
	t.Parallel()
	type runs = []harvesterv1.ScheduledRun
	const failed, skipped = harvesterv1.RunFailed, harvesterv1.RunSkipped
	good := scheduledRun(1, harvesterv1.RunSucceeded)
	suspended := unmade(5, 3, skipped, harvesterv1.SkippedSuspended)
	for name, c := range map[string]struct {
		runs runs // the newest first
		want int  // 0: none
	}{
		"no run":                  {nil, 0},
		"good":                    {runs{good, scheduledRun(0, failed)}, 0},
		"failed":                  {runs{scheduledRun(2, failed), good}, 2},
		"the first of those":      {runs{scheduledRun(3, failed), scheduledRun(2, failed), good}, 2},
		"runs":                    {runs{scheduledRun(3, harvesterv1.RunStarted), good}, 3},
		"tries again":             {runs{scheduledRun(3, harvesterv1.RunRetrying)}, 3},
		"deleted":                 {runs{scheduledRun(3, harvesterv1.RunDeleted), good}, 3},
		"missed, several":         {runs{unmade(3, 5, harvesterv1.RunMissed, ""), good}, 3},
		"the machine is gone":     {runs{unmade(3, 5, skipped, harvesterv1.SkippedNoMachine)}, 3},
		"suspended":               {runs{suspended, good}, 0},
		"suspended after failing": {runs{suspended, scheduledRun(4, failed), good}, 4},
		"never a success":         {runs{scheduledRun(5, failed), scheduledRun(4, failed)}, 4},
	} {
		got := unmetSince(c.runs)
		if c.want == 0 && !got.IsZero() || c.want > 0 && !got.Equal(at(c.want).Time) {
			t.Errorf("%s: %v, want minute %d", name, got, c.want)
		}
	}
}

// Each run counts once, however often its schedule is looked at, and one that ended while nobody looked counts as well.
func TestSchedules_countRunsOnce(t *testing.T) {
	t.Parallel()
	s := NewSchedules()
	before := harvesterv1.ScheduleVMBackupStatus{Runs: []harvesterv1.ScheduledRun{
		scheduledRun(5, harvesterv1.RunStarted), scheduledRun(4, harvesterv1.RunSucceeded),
	}}
	for _, runs := range [][]harvesterv1.ScheduledRun{
		{scheduledRun(5, harvesterv1.RunRetrying), scheduledRun(4, harvesterv1.RunSucceeded)},
		{scheduledRun(5, harvesterv1.RunFailed), scheduledRun(4, harvesterv1.RunSucceeded)},
		{scheduledRun(5, harvesterv1.RunFailed), scheduledRun(4, harvesterv1.RunSucceeded)},
		{unmade(6, 0, harvesterv1.RunSkipped, harvesterv1.SkippedOverlap), scheduledRun(5, harvesterv1.RunFailed)},
		{unmade(6, 3, harvesterv1.RunSkipped, harvesterv1.SkippedOverlap), scheduledRun(5, harvesterv1.RunFailed)},
		{unmade(9, 7, harvesterv1.RunMissed, ""), unmade(6, 3, harvesterv1.RunSkipped, harvesterv1.SkippedOverlap)},
		{scheduledRun(16, harvesterv1.RunSucceeded), unmade(9, 7, harvesterv1.RunMissed, "")},
	} {
		after := harvesterv1.ScheduleVMBackupStatus{Runs: runs}
		s.Record(scheduleWith("vm", before), scheduleWith("vm", after))
		before = after
	}
	const total = "varve_schedule_runs_total{namespace=ns,result="
	mustEqual(t, series(t, s, "varve_schedule_runs_total"), []string{
		total + "Failed,schedule=nightly,vm=vm} 1", total + "Skipped,schedule=nightly,vm=vm} 3",
		total + "Missed,schedule=nightly,vm=vm} 7", total + "Succeeded,schedule=nightly,vm=vm} 1",
	})
}

func TestSchedules_endTheirSeries(t *testing.T) {
	t.Parallel()
	s := NewSchedules()
	none := scheduleWith("vm", harvesterv1.ScheduleVMBackupStatus{})
	ended := harvesterv1.ScheduleVMBackupStatus{
		Runs: []harvesterv1.ScheduledRun{scheduledRun(5, harvesterv1.RunSucceeded)},
	}
	s.Record(none, scheduleWith("vm", ended))
	s.Record(none, scheduleWith("other", ended)) // it was deleted and made anew
	for _, text := range []string{"varve_schedule_consecutive_failures", "varve_schedule_runs_total"} {
		if all := series(t, s, text); len(all) != 1 {
			t.Errorf("series of the earlier one: %v", all)
		}
	}
	s.Forget(types.NamespacedName{Namespace: "ns", Name: "nightly"})
	mustEqual(t, series(t, s, "varve_schedule_"), nil)
}
