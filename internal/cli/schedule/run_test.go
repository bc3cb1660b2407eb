package schedule

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/progress"
	"github.com/varvebackup/varve/internal/errclass"
)

// A run has a minute of its own, after that of the latest run.
func TestRunTime(t *testing.T) {
	t.Parallel()
	at := func(text string) time.Time {
		parsed, err := time.Parse(time.TimeOnly, text)
		if err != nil {
			t.Fatal(err)
		}
		return due.Truncate(24 * time.Hour).Add(parsed.Sub(parsed.Truncate(24 * time.Hour)))
	}
	for name, c := range map[string]struct{ last, asked, now, want string }{
		"the present minute":                  {"01:00:00", "", "02:10:59", "02:10:00"},
		"the minute of the latest run":        {"02:10:00", "", "02:10:59", "02:11:00"},
		"the schedule was made this minute":   {"02:10:30", "", "02:10:59", "02:11:00"},
		"the clock is behind":                 {"02:15:00", "", "02:10:59", "02:16:00"},
		"a run that was asked for is to come": {"01:00:00", "02:09:00", "02:10:59", "02:09:00"},
		"the latest one was asked for":        {"01:00:00", "asked 02:10:00", "02:10:59", "02:11:00"},
		"one that was asked for was made":     {"01:00:00", "asked 02:09:00", "02:10:59", "02:10:00"},
		"one is asked for later":              {"01:00:00", "12:00:00", "02:10:59", "02:10:00"},
	} {
		s, _ := testSchedule()
		s.Status.LastScheduleTime = &metav1.Time{Time: at(c.last)}
		asked, made := strings.CutPrefix(c.asked, "asked ")
		if made {
			s.Status.LastRequestedTime = &metav1.Time{Time: at(asked)}
		}
		if c.asked != "" {
			s.Annotations = map[string]string{harvesterv1.AnnotationRunAt: at(asked).Format(time.RFC3339)}
		}
		if got := runTime(s, at(c.now)); !got.Equal(at(c.want)) {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	s, now := testSchedule()
	if got := runTime(s, now); !got.Equal(now) {
		t.Errorf("of a schedule that nobody has dealt with: %s", got)
	}
}

func TestCheckRunnable(t *testing.T) {
	t.Parallel()
	for says, edit := range map[string]func(*harvesterv1.ScheduleVMBackup){
		"":                                       func(*harvesterv1.ScheduleVMBackup) {},
		"schedule s is suspended,":               func(s *harvesterv1.ScheduleVMBackup) { s.Spec.Suspend = true },
		"schedule s is suspended":                func(s *harvesterv1.ScheduleVMBackup) { s.Status.Suspended = true },
		"makes no backups as it is: spec.cron: ": func(s *harvesterv1.ScheduleVMBackup) { s.Spec.Cron = "0 25 * * *" },
	} {
		s, _ := testSchedule()
		s.Name = "s"
		edit(s)
		err := checkRunnable(offlineSession(), s)
		if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
			t.Errorf("%q: %v", says, err)
		}
		if strings.Contains(says, "suspended") && !strings.Contains(failure.Hint(err), "varve schedule resume s") {
			t.Errorf("hint %q", failure.Hint(err))
		}
	}
}

// step is what the controller writes when the command shows something.
type step struct {
	after string // phase
	run   harvesterv1.ScheduledRun
	// ready and failed say how its backup ends.
	ready, failed bool
}

// A run is followed through its attempts to its end.
func TestRunFollower(t *testing.T) {
	t.Parallel()
	one := func(result harvesterv1.RunResult, backup string) harvesterv1.ScheduledRun {
		return harvesterv1.ScheduledRun{
			Time: metav1.NewTime(due), Result: result, Backup: backup, Reason: harvesterv1.RunRequested,
		}
	}
	retrying, overlap := one(harvesterv1.RunRetrying, "a"), one(harvesterv1.RunSkipped, "")
	several := overlap
	retrying.RetryTime = &metav1.Time{Time: due.Add(time.Minute)}
	overlap.Reason, overlap.Message = harvesterv1.SkippedOverlap, "VirtualMachineBackup x had not ended"
	several.Reason, several.Time = harvesterv1.SkippedNoMachine, metav1.NewTime(due.Add(-time.Hour))
	several.LastTime, several.Count = &metav1.Time{Time: due}, 2
	failed := one(harvesterv1.RunFailed, "b")
	failed.Attempts, failed.Message = 2, "the bucket is full"
	due5, failedDue := one(harvesterv1.RunStarted, "a"), one(harvesterv1.RunFailed, "a")
	due5.Time, failedDue.Time = metav1.NewTime(due.Add(-5*time.Minute)), metav1.NewTime(due.Add(-5*time.Minute))
	failedDue.Message = "the bucket is full"
	const pending, began = "Pending", "Pending" // of the schedule, and of the backup
	for name, c := range map[string]struct {
		steps  []step
		want   string // the error, or "" for success
		backup string
	}{
		"it succeeds": {
			[]step{
				{pending, one(harvesterv1.RunStarted, "a"), false, false},
				{began, one(harvesterv1.RunSucceeded, "a"), true, false},
			},
			"", "a",
		},
		"it was quick": {[]step{{pending, one(harvesterv1.RunSucceeded, "a"), true, false}}, "", "a"},
		"its backup is gone already": {
			[]step{{pending, one(harvesterv1.RunSucceeded, "a"), false, false}}, "", "a",
		},
		"the second attempt succeeds": {
			[]step{
				{pending, one(harvesterv1.RunStarted, "a"), false, false},
				{began, retrying, false, true},
				{"Retrying", one(harvesterv1.RunStarted, "b"), false, false},
				{began, one(harvesterv1.RunSucceeded, "b"), true, false},
			},
			"", "b",
		},
		"the second attempt fails": {
			[]step{
				{pending, one(harvesterv1.RunStarted, "a"), false, false},
				{began, retrying, false, true},
				{"Retrying", one(harvesterv1.RunStarted, "b"), false, false},
				{began, failed, false, true},
			},
			"the run of 2026-11-29T01:00:00Z (requested) failed after 2 attempts: the bucket is full", "b",
		},
		"it is skipped": {
			[]step{{pending, overlap, false, false}},
			"the run of 2026-11-29T01:00:00Z was skipped: VirtualMachineBackup x had not ended", "",
		},
		"it is skipped with others": {
			[]step{{pending, several, false, false}},
			"the run of 2026-11-29T00:00:00Z (and 1 more until 2026-11-29T01:00:00Z) was skipped: " +
				"the virtual machine does not exist", "",
		},
		"one that was due takes its place": {
			[]step{
				{pending, due5, false, false},
				{began, failedDue, false, true},
			},
			"the run of 2026-11-29T00:55:00Z (requested) failed: the bucket is full", "a",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := askedFor()
			k := newClient(t, serverWatches(), s)
			f := &runFollower{client: k, session: offlineSession(), schedule: s.DeepCopy(), at: due}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			steps := c.steps
			err := f.untilEnded(ctx, func(r progress.Report) {
				if len(steps) > 0 && steps[0].after == r.Phase {
					steps[0].write(ctx, t, k)
					steps = steps[1:]
				}
			})
			got := ""
			if err != nil {
				got = err.Error()
			}
			if diff := cmp.Diff(c.want, got); diff != "" || f.backup.Name != c.backup || len(steps) > 0 {
				t.Errorf("backup %q, %d steps left %s", f.backup.Name, len(steps), diff)
			}
			gone := name == "its backup is gone already"
			if err == nil && f.backup.IsReady() == gone {
				t.Error(f.describeStored())
			}
			if err != nil && failure.Code(err) != errclass.ExitFailure {
				t.Errorf("exit code %d", failure.Code(err))
			}
		})
	}
}

// askedFor returns a schedule that was asked for a run.
func askedFor() *harvesterv1.ScheduleVMBackup {
	s := inCluster()
	s.Annotations = map[string]string{harvesterv1.AnnotationRunAt: due.Format(time.RFC3339)}
	return s
}

// write does what the controllers do: the run is recorded, and its backup begins or has ended.
func (s step) write(ctx context.Context, t *testing.T, c *cluster.Client) {
	t.Helper()
	o, err := getSchedule(ctx, c, "nightly")
	if err != nil {
		t.Error(err)
		return
	}
	b := &harvesterv1.VirtualMachineBackup{}
	b.Namespace, b.Name = "app", s.run.Backup
	if s.run.Result == harvesterv1.RunStarted {
		if err := c.Create(ctx, b); err != nil {
			t.Error(err)
		}
	} else if s.ready || s.failed {
		err := c.Get(ctx, client.ObjectKeyFromObject(b), b)
		if cluster.Classify(err) == cluster.NotFound {
			err = c.Create(ctx, b)
		}
		if err != nil {
			t.Error(err)
		}
		b.Status.ReadyToUse = ptr.To(s.ready)
		if s.failed {
			b.Status.Error = &harvesterv1.Error{Message: ptr.To("the bucket is full")}
		}
		if err := c.Update(ctx, b); err != nil {
			t.Error(err)
		}
	}
	o.Status.Runs = []harvesterv1.ScheduledRun{s.run}
	o.Status.LastRequestedTime = &metav1.Time{Time: due}
	if err := c.Update(ctx, o); err != nil {
		t.Error(err)
	}
}

// A schedule that is suspended or deleted meanwhile ends the wait.
func TestRunFollower_ofAScheduleThatMakesNoBackup(t *testing.T) {
	t.Parallel()
	for says, edit := range map[string]func(*harvesterv1.ScheduleVMBackup){
		"schedule nightly was suspended before the run began": func(s *harvesterv1.ScheduleVMBackup) {
			s.Spec.Suspend = true
		},
		"the run of 2026-11-29T01:00:00Z was not made: somebody has asked schedule nightly for another one": func(
			s *harvesterv1.ScheduleVMBackup,
		) {
			s.Annotations[harvesterv1.AnnotationRunAt] = "2026-11-29T01:30:00Z"
		},
		"schedule nightly has no record of the run of 2026-11-29T01:00:00Z any more": func(
			s *harvesterv1.ScheduleVMBackup,
		) {
			s.Status.LastRequestedTime = &metav1.Time{Time: due}
		},
		"schedule nightly was deleted before the run ended": func(s *harvesterv1.ScheduleVMBackup) { s.UID = "another" },
	} {
		asked, seen := askedFor(), askedFor()
		edit(seen)
		f := &runFollower{client: newClient(t, serverWatches(), seen), session: offlineSession(), schedule: asked, at: due}
		if err := f.untilEnded(t.Context(), func(progress.Report) {}); err == nil || !strings.HasPrefix(err.Error(), says) {
			t.Errorf("%v, want %s", err, says)
		}
	}
}
