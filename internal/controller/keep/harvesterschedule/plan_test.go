package harvesterschedule

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	"github.com/varvebackup/varve/internal/controller/keep/condition"
	"github.com/varvebackup/varve/internal/cron"
	"github.com/varvebackup/varve/internal/schedule"
	"github.com/varvebackup/varve/test/gen"
)

// town is a cluster as far as schedules see it, with a clock that the test drives.
type town struct {
	*testing.T
	now      time.Time
	schedule *harvesterv1.ScheduleVMBackup
	backups  []*harvesterv1.VirtualMachineBackup
	machine  bool
	location string
	// made are the due times of all backups that were ever made, in the order of their creation.
	made []time.Time
}

func at(tb testing.TB, text string) time.Time {
	tb.Helper()
	t, err := time.Parse("2006-01-02 15:04:05", text)
	if err != nil {
		tb.Fatal(err)
	}
	return t.UTC()
}

// newTown has a schedule of every minute that keeps three backups, made at 10:00:30.
func newTown(t *testing.T, edit ...func(*harvesterv1.ScheduleVMBackup)) *town {
	t.Helper()
	w := &town{T: t, now: at(t, "2026-11-30 10:00:30"), machine: true}
	w.schedule = gen.Schedule(gen.Meta("shop", "minutes"), "web")
	w.schedule.UID, w.schedule.CreationTimestamp = "uid", metav1.NewTime(w.now)
	w.schedule.Annotations = map[string]string{harvesterv1.AnnotationSkipCronCheck: "enable"}
	w.schedule.Spec.Cron, w.schedule.Spec.Retain, w.schedule.Spec.MaxFailure = "* * * * *", 3, 2
	for _, f := range edit {
		f(w.schedule)
	}
	return w
}

// pass is one pass of the reconciler that dies after some of its steps: 1, before anything; 2, after the spec; 3,
// after the backup; 4, after the status; 0, not at all.
func (w *town) pass(dies int) *plan {
	w.Helper()
	p := makePlan(&input{
		now: w.now, schedule: w.schedule, backups: w.backups, machine: w.machine,
		location: w.location,
	})
	if dies == 1 {
		return p
	}
	w.schedule.Spec.Suspend = w.schedule.Spec.Suspend || p.suspend
	if dies == 2 {
		return p
	}
	if p.create != nil && !slices.ContainsFunc(w.backups,
		func(b *harvesterv1.VirtualMachineBackup) bool { return b.Name == p.create.Name }) {
		p.create.UID, p.create.CreationTimestamp = types.UID(p.create.Name), metav1.NewTime(w.now)
		w.backups, w.made = append(w.backups, p.create), append(w.made, schedule.DueTime(p.create))
	}
	if dies == 3 {
		return p
	}
	w.schedule.Status = p.status
	if dies == 4 {
		return p
	}
	for _, b := range p.remove {
		w.backups = slices.DeleteFunc(w.backups, func(o *harvesterv1.VirtualMachineBackup) bool { return o == b })
	}
	return p
}

// end ends all backups that run, well or with an error.
func (w *town) end(failure string) {
	for _, b := range w.backups {
		if b.IsReady() || b.HasFailed() {
			continue
		}
		if failure != "" {
			b.Status.Error = &harvesterv1.Error{Message: &failure}
			continue
		}
		b.Status.ReadyToUse, b.Status.CreationTime = ptr.To(true), ptr.To(metav1.NewTime(w.now))
	}
}

// minutes lets minutes pass. All backups end in the middle of each.
func (w *town) minutes(n int, failure string) {
	w.Helper()
	for range n {
		w.now = w.now.Add(30 * time.Second)
		w.pass(0)
		w.now = w.now.Add(30 * time.Second)
		w.end(failure)
		w.pass(0)
	}
}

// names returns the minutes of the backups that are there, with an exclamation mark for those that failed.
func (w *town) names() string {
	var all []string
	for _, b := range w.backups {
		text := schedule.DueTime(b).Format("15:04")
		if b.HasFailed() {
			text += "!"
		}
		all = append(all, text)
	}
	return strings.Join(all, " ")
}

func (w *town) wants(what, got, want string) {
	w.Helper()
	if got != want {
		w.Errorf("%s: %s, want %s", what, got, want)
	}
}

// runs returns the runs of the status, the newest first.
func (w *town) runs() string {
	var all []string
	for _, r := range w.schedule.Status.Runs {
		text := r.Time.UTC().Format("15:04")
		if r.Count > 0 {
			text += fmt.Sprintf("x%d", r.Count)
		}
		all = append(all, strings.TrimSpace(text+" "+string(r.Result)+" "+r.Reason))
	}
	return strings.Join(all, ", ")
}

func (w *town) suspension() string {
	c := condition.Find(w.schedule.Status.Conditions, harvesterv1.ConditionBackupSuspend)
	if c == nil || c.Status != corev1.ConditionTrue {
		return ""
	}
	return c.Message
}

func TestPlan_keepsTheNewest(t *testing.T) {
	t.Parallel()
	w := newTown(t)
	w.pass(0)
	w.wants("before the first minute", w.names(), "")
	w.minutes(3, "")
	w.wants("three", w.names(), "10:01 10:02 10:03")
	w.now = w.now.Add(30 * time.Second)
	w.pass(0)
	w.wants("the fourth one runs", w.names(), "10:01 10:02 10:03 10:04")
	w.end("")
	w.pass(0)
	w.wants("the fourth one has ended", w.names(), "10:02 10:03 10:04")
	w.wants("next", w.schedule.Status.NextScheduleTime.UTC().Format("15:04:05"), "10:05:00")
	w.wants("last good", w.schedule.Status.LastSuccessfulTime.UTC().Format("15:04:05"), "10:04:00")
	if n := len(w.schedule.Status.VMBackupInfo); n != 4 {
		t.Errorf("the status has %d backups, want the 4 that it was read with", n)
	}
	b := w.backups[2]
	w.wants("name", b.Name, "svmbackup-uid-20261130.1004")
	want := map[string]string{
		harvesterv1.AnnotationSchedule: "shop/minutes", harvesterv1.AnnotationStartBy: "2026-11-30T10:04:55Z",
	}
	if diff := cmp.Diff(want, b.Annotations); diff != "" {
		t.Error("annotations: " + diff)
	}
}

func TestPlan_failures(t *testing.T) {
	t.Parallel()
	w := newTown(t)
	w.minutes(3, "")
	w.minutes(1, "the target is away")
	w.wants("one failed", w.names(), "10:01 10:02 10:03 10:04!")
	w.minutes(1, "")
	w.wants("failed ones go first", w.names(), "10:02 10:03 10:05")
	w.minutes(2, "the target is away")
	w.wants("the latest failure says why", w.names(), "10:02 10:03 10:05 10:07!")
	if s := w.schedule.Status; !w.schedule.Spec.Suspend || !s.Suspended || s.Failure != 2 ||
		!strings.HasPrefix(w.suspension(), "Reach Max Failure") {
		t.Errorf("after two failures in a row: spec.suspend %v, status %+v, %q", w.schedule.Spec.Suspend, s,
			w.suspension())
	}
	w.minutes(3, "")
	w.wants("while it is suspended", w.names(), "10:02 10:03 10:05 10:07!")
	w.wants("runs", w.runs(), "10:08x3 Skipped Suspended, 10:07 Failed, 10:06 Failed, 10:05 Succeeded, 10:04 "+
		"Failed, 10:03 Succeeded, 10:02 Succeeded, 10:01 Succeeded")

	w.schedule.Spec.MaxFailure = 3
	w.schedule.Spec.Retain = 4
	w.pass(0)
	w.wants("a larger maxFailure lets nothing go on", w.suspension()[:len("Reach Max Failure")], "Reach Max Failure")
	w.schedule.Spec.Retain, w.schedule.Spec.MaxFailure = 3, 2

	w.location, w.schedule.Spec.Suspend = "BackupStorageLocation shelf is not available", false
	w.minutes(1, "")
	if !w.schedule.Status.Suspended || !strings.Contains(w.suspension(), "shelf is not available") {
		t.Errorf("it goes on with a location that is away: %q", w.suspension())
	}
	w.location = ""
	w.pass(0)
	w.wants("the failed ones go", w.names(), "10:02 10:03 10:05")
	if !w.schedule.Status.Suspended {
		t.Error("it goes on before those are gone")
	}
	w.pass(0)
	if s := w.schedule.Status; s.Suspended || s.Failure != 0 || w.suspension() != "" {
		t.Errorf("it does not go on: %+v", s)
	}
	w.minutes(1, "")
	w.wants("it goes on", w.names(), "10:03 10:05 10:12")
}

func TestPlan_suspendedByHand(t *testing.T) {
	t.Parallel()
	w := newTown(t)
	w.minutes(1, "")
	w.schedule.Spec.Suspend = true
	w.minutes(2, "")
	w.wants("why", w.suspension(), "Proactive Schedule Suspend: spec.suspend is true")
	if p := w.pass(0); w.schedule.Status.NextScheduleTime != nil || p.next.IsZero() {
		t.Errorf("a suspended schedule is due at %v, and is looked at at %s", w.schedule.Status.NextScheduleTime,
			p.next)
	}
	w.now = w.now.Add(time.Hour) // no controller runs
	w.schedule.Spec.Suspend = false
	w.pass(0)
	w.wants("nothing is made up for", w.names(), "10:01")
	w.minutes(1, "")
	w.wants("it goes on", w.names(), "10:01 11:04")
}

func TestPlan_runsWithoutABackup(t *testing.T) {
	t.Parallel()
	w := newTown(t)
	w.now = w.now.Add(30 * time.Second)
	w.pass(0)
	w.now = w.now.Add(time.Minute)
	w.pass(0)
	w.now = w.now.Add(time.Minute)
	w.pass(0)
	w.wants("the backup runs", w.names(), "10:01")
	w.wants("runs that overlap", w.runs(), "10:02x2 Skipped Overlap, 10:01 Started")
	w.end("")
	w.machine = false
	w.now = w.now.Add(time.Minute)
	w.pass(0)
	w.wants("without a machine", w.runs(), "10:04 Skipped MachineNotFound, 10:02x2 Skipped Overlap, 10:01 Succeeded")
	if w.schedule.Status.Failure != 0 {
		t.Error("a machine that is gone counts as a failure")
	}
	w.machine = true
	w.now = w.now.Add(10 * time.Minute)
	w.pass(0)
	w.wants("what was missed is made up for once", w.names(), "10:01 10:14")
	w.wants("and recorded", w.runs(), "10:14 Started, 10:05x9 Missed, 10:04 Skipped MachineNotFound, 10:02x2 "+
		"Skipped Overlap, 10:01 Succeeded")
	w.backups = w.backups[:1]
	w.pass(0)
	w.wants("a backup that is deleted", strings.Split(w.runs(), ",")[0], "10:14 Deleted")
	w.backups = nil
	w.pass(0)
	if last := w.schedule.Status.LastSuccessfulTime; last != nil {
		t.Errorf("nothing can be restored, and the last good one is of %s", last)
	}
}

func TestPlan_otherTimes(t *testing.T) {
	t.Parallel()
	w := newTown(t, func(o *harvesterv1.ScheduleVMBackup) { o.Spec.Cron = "0 11 * * *" })
	w.pass(0)
	w.schedule.Spec.Cron = "0 9 * * *"
	w.now = w.now.Add(time.Hour)
	w.pass(0)
	w.wants("nothing is made up for by other times", w.names(), "")
	w.wants("next", w.schedule.Status.NextScheduleTime.UTC().Format("2006-01-02 15:04"), "2026-12-01 09:00")
	w.schedule.Annotations[harvesterv1.AnnotationTimeZone] = "Asia/Tokyo"
	w.pass(0)
	w.wants("next in Tokyo", w.schedule.Status.NextScheduleTime.UTC().Format("2006-01-02 15:04"), "2026-12-01 00:00")

	for cronText, want := range map[string]string{
		"61 * * * *": "spec.cron: ", "*/30 * * * *": `is due 30m0s apart, and backups need 1h0m0s or more`,
	} {
		w.schedule.Annotations = nil
		w.schedule.Spec.Cron = cronText
		p := w.pass(0)
		c := condition.Find(w.schedule.Status.Conditions, harvesterv1.ConditionReady)
		if c == nil || c.Status != corev1.ConditionFalse || !strings.Contains(c.Message, want) || !p.next.IsZero() {
			t.Errorf("%s: %+v, next %s", cronText, c, p.next)
		}
	}
	w.schedule.Spec.Cron, w.schedule.Annotations = "0 9 * * *", nil
	w.pass(0)
	w.schedule.Annotations = map[string]string{harvesterv1.AnnotationJitter: "25h"}
	w.pass(0)
	w.now = w.now.Add(48 * time.Hour)
	w.pass(0)
	w.schedule.Annotations = nil
	w.pass(0)
	w.wants("nothing is made up for after it was put right", w.names()+w.runs(), "")
	if c := condition.Find(w.schedule.Status.Conditions,
		harvesterv1.ConditionReady); c.Status != corev1.ConditionTrue || c.Message != "" {
		t.Errorf("a schedule that was put right: %+v", c)
	}
}

// A schedule that was made again removes what it takes over only after a backup of its own.
func TestPlan_adopted(t *testing.T) {
	t.Parallel()
	w := newTown(t)
	w.minutes(3, "")
	w.schedule.UID, w.schedule.Status, w.schedule.CreationTimestamp = "uid-2", harvesterv1.ScheduleVMBackupStatus{},
		metav1.NewTime(w.now)
	w.schedule.Spec.Retain = 2
	w.pass(0)
	w.minutes(1, "the target is away")
	w.wants("before it has made a good one", w.names(), "10:01 10:02 10:03 10:04!")
	w.minutes(1, "")
	w.wants("after that", w.names(), "10:03 10:05")
}

// newNight has a schedule of each night, made at midnight.
func newNight(t *testing.T, edit ...func(*harvesterv1.ScheduleVMBackup)) *town {
	t.Helper()
	w := newTown(t, append(edit, func(o *harvesterv1.ScheduleVMBackup) { o.Spec.Cron = "0 1 * * *" })...)
	w.now = at(t, "2026-12-01 00:00:00")
	w.schedule.CreationTimestamp = metav1.NewTime(w.now)
	w.pass(0)
	return w
}

// at lets the clock show a time of the first of December, and passes.
func (w *town) at(clock string) *plan {
	w.Helper()
	w.now = at(w.T, "2026-12-01 "+clock)
	return w.pass(0)
}

func TestPlan_triesAgain(t *testing.T) {
	t.Parallel()
	w := newNight(t)
	w.at("01:00:00")
	w.now = at(t, "2026-12-01 01:02:30")
	w.end("the guest was restarted")
	p := w.pass(0)
	w.wants("after a failure", w.runs(), "01:00 Retrying")
	w.wants("the next attempt", p.next.Format("15:04:05"), "01:07:00")
	if s := w.schedule.Status; s.Failure != 0 || len(p.failed) != 1 || len(p.ended) != 0 ||
		s.Runs[0].Message != "the guest was restarted" {
		t.Errorf("a failure that is tried again: %+v, %d failed, %d ended", s, len(p.failed), len(p.ended))
	}
	w.wants("before it", w.at("01:06:59").next.Format("15:04:05")+" "+w.names(), "01:07:00 01:00!")

	w.now = at(t, "2026-12-01 01:07:00")
	w.pass(3) // it dies before the status is written
	w.pass(0)
	w.wants("the second attempt", w.names()+", "+w.runs(), "01:00! 01:07, 01:00 Started")
	w.end("the guest was restarted")
	w.at("01:10:00")
	w.at("01:25:00")
	w.wants("the third attempt", w.names()+", "+w.runs(), "01:00! 01:07! 01:25, 01:00 Started")
	if r := w.schedule.Status.Runs[0]; r.Attempts != 3 || r.Backup != w.backups[2].Name {
		t.Errorf("the third attempt is recorded as %+v", r)
	}
	w.end("the guest was restarted")
	w.at("01:26:00")
	w.wants("three failures are one of the run", fmt.Sprint(w.schedule.Status.Failure, " ", w.runs()), "1 01:00 Failed")
	w.wants("next", w.schedule.Status.NextScheduleTime.UTC().Format("2 15:04"), "2 01:00")

	w.now = w.now.Add(24 * time.Hour)
	w.pass(0)
	w.end("the target is away")
	w.pass(0)
	w.now = w.now.Add(5 * time.Minute)
	w.pass(0)
	w.end("")
	w.pass(0)
	w.wants("a second attempt that is good", fmt.Sprint(w.schedule.Status.Failure, " ", w.runs()),
		"0 01:00 Succeeded, 01:00 Failed")
}

func TestPlan_triesNoMore(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		edit func(*town)
		want string
	}{
		"suspended":       {func(w *town) { w.schedule.Spec.Suspend = true }, "01:00 Failed"},
		"machine is gone": {func(w *town) { w.machine = false }, "01:00 Failed"},
		"times are wrong": {func(w *town) { w.schedule.Spec.Cron = "x" }, "01:00 Failed"},
		"nobody was there until the next run": {
			func(w *town) { w.now = w.now.Add(24 * time.Hour) }, "01:00 Started, 01:00 Failed",
		},
		"somebody asks for a run": {func(w *town) {
			w.schedule.Annotations[harvesterv1.AnnotationRunAt] = "2026-12-01T01:04:00Z"
		}, "01:04 Started Requested, 01:00 Failed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newNight(t)
			w.at("01:00:00")
			w.end("the guest was restarted")
			w.at("01:02:00")
			w.now = at(t, "2026-12-01 01:07:00")
			c.edit(w)
			w.pass(0)
			w.wants("runs", w.runs(), c.want)
			if w.schedule.Status.Failure != 1 {
				t.Errorf("%d failures, want 1", w.schedule.Status.Failure)
			}
		})
	}
	w := newTown(t, func(o *harvesterv1.ScheduleVMBackup) { o.Spec.Cron = "0 * * * *" })
	w.now = at(t, "2026-11-30 11:00:00")
	w.pass(0)
	w.now = at(t, "2026-11-30 12:00:00")
	w.pass(0)
	w.now = at(t, "2026-11-30 12:10:00")
	w.end("the target is away")
	p := w.pass(0)
	w.wants("a run before one that was skipped", fmt.Sprint(w.schedule.Status.Failure, len(p.failed), " ", w.runs()),
		"1 0 12:00 Skipped Overlap, 11:00 Failed")
	w.now = at(t, "2026-11-30 13:00:00")
	w.pass(0)
	w.now = at(t, "2026-11-30 13:59:56")
	w.end("waited in vain")
	p = w.pass(0)
	w.wants("the window is over", fmt.Sprint(len(p.failed), " ", strings.Split(w.runs(), ",")[0]), "0 13:00 Failed")

	w = newNight(t)
	w.at("01:00:00")
	w.end("changes are not tracked")
	w.backups[0].Status.Error.Time = ptr.To(metav1.NewTime(w.now))
	w.at("01:00:01")
	w.wants("a backup that was refused", w.runs(), "01:00 Failed")
}

func TestPlan_requested(t *testing.T) {
	t.Parallel()
	w := newNight(t)
	w.schedule.Annotations[harvesterv1.AnnotationRunAt] = "2026-12-01T00:30:20Z"
	w.wants("it is woken for it", w.at("00:29:00").next.Format("15:04"), "00:30")
	w.at("00:30:01")
	w.wants("at the time", w.names()+", "+w.runs(), "00:30, 00:30 Started Requested")
	w.end("")
	w.at("00:31:00")
	w.at("01:00:00")
	w.wants("the nightly run", w.names()+", "+w.runs(), "00:30 01:00, 01:00 Started, 00:30 Succeeded Requested")
	w.end("")
	w.schedule.Annotations[harvesterv1.AnnotationRunAt] = "2026-12-02T01:05:00Z"
	w.now = at(t, "2026-12-02 01:10:00") // no controller ran for a day
	w.pass(0)
	w.wants("the run that is due is the one that was asked for", w.runs(),
		"01:00 Started Requested, 01:00 Succeeded, 00:30 Succeeded Requested")
	w.schedule.Annotations[harvesterv1.AnnotationRunAt] = "2026-12-02T01:00:00Z"
	w.pass(0)
	w.wants("one that is asked for while another one runs", w.runs(),
		"01:00 Started Requested, 01:00 Succeeded, 00:30 Succeeded Requested")
	w.end("")
	w.pass(3) // it dies before the status is written
	w.pass(0)
	w.wants("is made after it, under a name of its own", w.names()+", "+w.runs(), "00:30 01:00 01:00 01:01, "+
		"01:00 Started Requested, 01:00 Succeeded Requested, 01:00 Succeeded, 00:30 Succeeded Requested")
	w.end("")
	w.schedule.Annotations[harvesterv1.AnnotationRunAt] = "now"
	w.pass(0)
	c := condition.Find(w.schedule.Status.Conditions, harvesterv1.ConditionReady)
	if c.Status != corev1.ConditionFalse || !strings.Contains(c.Message, `run-at, which is "now"`) {
		t.Errorf("a time that cannot be read: %+v", c)
	}
	w.schedule.Spec.Suspend = true
	w.pass(0)
	w.schedule.Annotations[harvesterv1.AnnotationRunAt] = "2026-12-02T02:00:00Z"
	w.now = at(t, "2026-12-02 02:00:00")
	w.pass(0)
	w.wants("while it is suspended", strings.Split(w.runs(), ",")[0], "02:00 Skipped Suspended")
}

func TestPlan_jitter(t *testing.T) {
	t.Parallel()
	w := newNight(t, func(o *harvesterv1.ScheduleVMBackup) {
		o.UID, o.Annotations[harvesterv1.AnnotationJitter] = "7d1d3f0c", "30m"
	})
	begin := w.schedule.Status.NextScheduleTime.UTC()
	if due := at(t, "2026-12-01 01:00:00"); !begin.After(due) || begin.Sub(due) >= 30*time.Minute {
		t.Fatalf("a run of 01:00 begins at %s", begin)
	}
	w.now = begin.Add(-time.Second)
	w.pass(0)
	w.wants("before it begins", w.names(), "")
	w.now = begin
	w.pass(0)
	w.wants("when it begins", w.names()+", "+w.runs(), "01:00, 01:00 Started")
	by, err := time.Parse(time.RFC3339, w.backups[0].Annotations[harvesterv1.AnnotationStartBy])
	if want := begin.Add(24*time.Hour - startMargin); err != nil || !by.Equal(want) {
		t.Errorf("it has to begin until %s, want %s (%v)", by, want, err)
	}
	w.wants("next", w.schedule.Status.NextScheduleTime.UTC().String(), begin.Add(24*time.Hour).String())
	w.end("")

	due := at(t, "2026-12-02 01:00:00")
	w.now = due.Add(time.Minute)
	w.schedule.Annotations[harvesterv1.AnnotationRunAt] = w.now.Format(time.RFC3339)
	w.pass(0)
	w.end("")
	w.schedule.Spec.Suspend = true
	w.pass(0)
	w.schedule.Spec.Suspend = false
	w.pass(0)
	w.schedule.Spec.Retain = 4
	w.now = begin.Add(24 * time.Hour)
	w.pass(0)
	w.wants("a request and a pause before it begins leave the run", w.runs(),
		"01:00 Started, 01:01 Succeeded Requested, 01:00 Succeeded")
}

// An hourly schedule that begins late makes attempts past the time at which the next run is due.
func TestPlan_jitterAndAttempts(t *testing.T) {
	t.Parallel()
	w := newTown(t, func(o *harvesterv1.ScheduleVMBackup) {
		o.UID, o.Annotations[harvesterv1.AnnotationJitter], o.Spec.Cron = "7d1d3f0c", "1h", "0 * * * *"
		o.Spec.Retain = 10
	})
	w.pass(0)
	begin := w.schedule.Status.NextScheduleTime.UTC()
	if late := begin.Minute(); late < 15 || late > 50 {
		t.Fatalf("begins %d minutes late: choose another UID", late)
	}
	w.now = begin
	w.pass(0)
	w.now = begin.Truncate(time.Hour).Add(55*time.Minute + 30*time.Second)
	w.end("the guest was restarted")
	w.pass(0)
	w.wants("the minute of the next run is left to it", w.schedule.Status.Runs[0].RetryTime.UTC().Format("15:04"), "12:01")
	w.now = w.schedule.Status.Runs[0].RetryTime.Time
	w.pass(0)
	w.end("")
	w.pass(0)
	w.now = begin.Add(time.Hour)
	w.pass(0)
	w.wants("each run has its backup", w.names()+", "+w.runs(), "11:00! 12:01 12:00, 12:00 Started, 11:00 Succeeded")
}

func TestPlan_keepRules(t *testing.T) {
	t.Parallel()
	w := newNight(t, func(o *harvesterv1.ScheduleVMBackup) {
		o.Annotations[harvesterv1.AnnotationKeepWeekly] = "3"
	})
	nights := func(n int) {
		t.Helper()
		for range n {
			w.now = w.now.Add(24 * time.Hour)
			w.pass(0)
			w.end("")
			w.pass(0)
		}
	}
	days := func() string {
		var all []string
		for _, b := range w.backups {
			all = append(all, schedule.DueTime(b).Format("0102"))
		}
		return strings.Join(all, " ")
	}
	nights(27)
	w.wants("three days, and three weeks", days(), "1213 1220 1225 1226 1227")
	w.schedule.Annotations[harvesterv1.AnnotationKeepWeekly] = "many"
	nights(2)
	w.wants("nothing is removed by a rule that cannot be read", days(), "1213 1220 1225 1226 1227 1228 1229")
	c := condition.Find(w.schedule.Status.Conditions, harvesterv1.ConditionReady)
	if c.Status != corev1.ConditionFalse || !strings.Contains(c.Message, "none is removed") ||
		!strings.Contains(c.Message, `keep-weekly is "many"`) {
		t.Errorf("the schedule says %+v", c)
	}
}

func TestPlan_clockThatIsSet(t *testing.T) {
	t.Parallel()
	w := newTown(t)
	w.minutes(2, "")
	w.now = w.now.Add(-90 * time.Second)
	w.minutes(2, "")
	w.wants("a clock that was set back makes nothing twice", w.names(), "10:01 10:02 10:03")
	w.end("")
	w.now = w.now.Add(400 * 24 * time.Hour)
	w.pass(0)
	w.end("")
	w.now = w.now.Add(-400 * 24 * time.Hour)
	w.minutes(1, "")
	if n := len(w.made); n != 5 {
		t.Errorf("after a clock that was ahead by a year: %d backups were made, want 5: %v", n, w.made)
	}
}

// TestPlan_dies runs schedules with a controller that dies after any of its steps and stays away for a while, backups
// that last, and a clock that jumps. Each due time has one backup, or one record of why there is none.
func TestPlan_dies(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"* * * * *", "*/7 * * * *", "0 * * * *", "30 2 * * *", "0 1 * * 1,4"} {
		for seed := range uint64(4) {
			t.Run(fmt.Sprintf("%s, seed %d", text, seed), func(t *testing.T) {
				t.Parallel()
				w := newTown(t, func(o *harvesterv1.ScheduleVMBackup) {
					o.Spec.Cron, o.Annotations[harvesterv1.AnnotationTimeZone] = text, "Europe/Berlin"
				})
				times, err := cron.Parse(text, "Europe/Berlin")
				if err != nil {
					t.Fatal(err)
				}
				w.live(times, rand.New(rand.NewPCG(seed, 1)))
			})
		}
	}
}

// live lets a schedule live through 500 passes, and counts.
func (w *town) live(times *cron.Schedule, r *rand.Rand) {
	w.Helper()
	interval := times.Next(times.Next(w.now)).Sub(times.Next(w.now))
	counted := lastScheduled(&w.schedule.Status, w.now)
	for range 500 {
		switch r.IntN(20) {
		case 0:
			w.now = w.now.Add(5 * interval)
		case 1:
			w.now = w.now.Add(-time.Duration(r.Int64N(int64(min(interval, 12*time.Hour)))))
		default:
			w.now = w.now.Add(time.Duration(r.Int64N(int64(interval))))
		}
		switch r.IntN(6) {
		case 0, 1:
		case 2:
			w.end("the target is away")
			w.schedule.Spec.Suspend = false
		default:
			w.end("")
		}
		before := w.schedule.Status.DeepCopy()
		w.pass(r.IntN(5))
		last := lastScheduled(&w.schedule.Status, counted)
		want := 0
		for due := times.Next(counted); !due.After(last); due = times.Next(due) {
			want++
		}
		if got := runsSince(before.Runs, w.schedule.Status.Runs); got != want {
			w.Fatalf("%d runs were due after %s and until %s, and %d are recorded: %s", want, counted, last, got,
				w.runs())
		}
		counted = last
	}
	slices.SortFunc(w.made, time.Time.Compare)
	if twice := len(w.made) - len(slices.Compact(slices.Clone(w.made))); twice > 0 {
		w.Errorf("%d runs were made twice", twice)
	}
	if len(w.made) < 50 {
		w.Errorf("%d backups were made: the test shows nothing", len(w.made))
	}
}

// runsSince returns how many runs were recorded between two versions of a status.
func runsSince(before, after []harvesterv1.ScheduledRun) (n int) {
	for _, r := range after {
		if len(before) > 0 && r.Time.Equal(&before[0].Time) && r.Reason == before[0].Reason {
			return n + max(r.Count, 1) - max(before[0].Count, 1)
		}
		n += max(r.Count, 1)
	}
	return n
}
