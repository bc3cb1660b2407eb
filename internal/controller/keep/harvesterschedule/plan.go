package harvesterschedule

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	"github.com/varvebackup/varve/internal/controller/keep/condition"
	"github.com/varvebackup/varve/internal/cron"
	"github.com/varvebackup/varve/internal/schedule"
)

const (
	// clockError is how far a run may seem to be in the future, by a clock that was set back. It is not made again.
	// What is further away was made by a clock that was wrong, and is not waited for.
	clockError = 24 * time.Hour
	// startMargin is how long before the next due time a backup has to have begun, so that its failure is counted by
	// then.
	startMargin = 5 * time.Second
	// leastWindow is how long a backup has to begin at the least: one that is made up for may be made just before the
	// next one is due.
	leastWindow = 30 * time.Second
	// backupsListed is how many backups the status lists at the most, as many as spec.retain may be.
	backupsListed = 250
	// disksListed is how many disks of the newest backups the status lists at the most: an object has a limit.
	disksListed = 2000
	// mostMissed is how many runs that were missed are counted.
	mostMissed = 1_000_000
)

// reasonNotScheduled is the reason of Ready for a schedule that can make no backups as it is.
const reasonNotScheduled = "NotScheduled"

// input is what a plan follows from.
type input struct {
	now      time.Time
	schedule *harvesterv1.ScheduleVMBackup
	// backups are those of the schedule, the oldest first, with those that are being deleted.
	backups []*harvesterv1.VirtualMachineBackup
	// machine says whether the virtual machine exists.
	machine bool
	// location says what is wrong with the location, or is "".
	location string
}

// plan is what is done, in this order.
type plan struct {
	// suspend: the spec is to say that the schedule is suspended.
	suspend bool
	// create is the backup to be made, or nil. The newest run of the status is its.
	create *harvesterv1.VirtualMachineBackup
	// status is what the status is to say.
	status harvesterv1.ScheduleVMBackupStatus
	// ended are the runs that have ended now, and failed those whose backups have failed now, and that go on.
	ended, failed []harvesterv1.ScheduledRun
	// remove are the backups to be deleted.
	remove []*harvesterv1.VirtualMachineBackup
	// next is when the schedule is looked at again, whose run is due then: also one that is suspended, to record the
	// run. It is zero for a schedule that can make no backups.
	next time.Time
	// waits: something is awaited of which no event tells.
	waits bool
}

// makePlan decides what is done for a schedule.
func makePlan(in *input) *plan {
	p := &plan{status: *in.schedule.Status.DeepCopy()}
	s := &p.status
	times, wrong := schedule.ReadTimes(in.schedule)
	if wrong == nil {
		in.adoptUnrecorded(s, times)
	}
	in.settleRuns(p, times)
	s.LastSuccessfulTime = lastGood(in.backups)
	s.VMBackupInfo = describeBackups(in.backups)
	p.waits = in.unfinishedBackup() != ""
	if wrong != nil {
		in.sayReady(s, wrong)
		s.NextScheduleTime, s.ObservedCron = nil, ""
		return p
	}
	in.sayReady(s, cmp.Or(in.chooseOld(p, times.Location()), in.checkRequest()))
	in.decideSuspension(p, times)
	in.decideRun(p, times)
	in.decideNext(p, times)
	p.waits = p.waits || p.create != nil
	return p
}

// sayReady says in the condition Ready what is wrong with the schedule, or that nothing is.
func (in *input) sayReady(s *harvesterv1.ScheduleVMBackupStatus, wrong error) {
	status, reason, message := corev1.ConditionTrue, "", ""
	if wrong != nil {
		status, reason, message = corev1.ConditionFalse, reasonNotScheduled, wrong.Error()
	}
	condition.Set(&s.Conditions, in.now, harvesterv1.ConditionReady, status, reason, message)
}

// chooseOld chooses the backups that go. If it cannot tell, none does, and the schedule goes on.
func (in *input) chooseOld(p *plan, location *time.Location) error {
	decisions, err := schedule.DecideRetention(in.schedule, location, in.now, in.backups)
	if err != nil {
		return fmt.Errorf("backups are made, and none is removed: %w", err)
	}
	p.remove = schedule.Old(decisions)
	return nil
}

// decideNext says when the schedule is looked at again.
func (in *input) decideNext(p *plan, times *schedule.Times) {
	s := &p.status
	p.next = times.Begin(laterOf(in.now.Add(-times.Delay), s.LastScheduleTime.Time))
	s.NextScheduleTime = nil
	if !s.Suspended && !p.next.IsZero() {
		s.NextScheduleTime = ptr.To(metav1.NewTime(p.next))
	}
	soonest := func(t time.Time) {
		if p.next.IsZero() || t.Before(p.next) {
			p.next = t
		}
	}
	if asked := in.pendingRequest(s); asked.After(in.now) {
		soonest(asked)
	}
	if run := retryingRun(s); run != nil && run.RetryTime.After(in.now) {
		soonest(run.RetryTime.Time)
	}
}

// adoptUnrecorded records the runs whose backups were made, but not written down: the controller died in between.
func (in *input) adoptUnrecorded(s *harvesterv1.ScheduleVMBackupStatus, times *schedule.Times) {
	for _, b := range in.backups {
		last, due := lastScheduled(s, in.schedule.CreationTimestamp.Time), schedule.DueTime(b)
		known := slices.ContainsFunc(s.Runs, func(r harvesterv1.ScheduledRun) bool { return r.Backup == b.Name })
		ahead := due.Sub(in.now)
		switch {
		case known || b.Name != schedule.BackupName(in.schedule, due):
		case ahead > clockError || ahead > 0 && (b.IsReady() || b.HasFailed()): // made by a clock that was wrong
		case b.Annotations[annotationRetryOf] != "":
			if run := retryingRun(s); run != nil && b.Name == schedule.BackupName(in.schedule, run.RetryTime.Time) {
				noteRetry(run, b.Name)
			}
		case b.Annotations[annotationRequested] != "":
			in.adoptRequested(s, b)
		case due.After(last):
			recordMissed(s, times, last, times.Count(last, due.Add(-time.Second), mostMissed))
			recordRun(s, harvesterv1.ScheduledRun{
				Time: metav1.NewTime(due), Result: harvesterv1.RunStarted, Backup: b.Name,
			})
			s.LastScheduleTime = ptr.To(metav1.NewTime(due))
		}
	}
}

// lastScheduled returns the latest due time that was dealt with, or else a time.
func lastScheduled(s *harvesterv1.ScheduleVMBackupStatus, otherwise time.Time) time.Time {
	if s.LastScheduleTime == nil {
		return otherwise
	}
	return s.LastScheduleTime.Time
}

// decideSuspension suspends the schedule, or lets it go on.
func (in *input) decideSuspension(p *plan, times *schedule.Times) {
	s, spec := &p.status, &in.schedule.Spec
	say := func(status corev1.ConditionStatus, reason, message string) {
		condition.Set(&s.Conditions, in.now, harvesterv1.ConditionBackupSuspend, status, reason, message)
	}
	tooMany := s.Failure >= spec.MaxFailure
	reason := harvesterv1.ReasonSuspended
	if c := condition.Find(s.Conditions, harvesterv1.ConditionBackupSuspend); s.Suspended && c != nil {
		reason = c.Reason // a larger maxFailure alone lets nothing go on
	}
	switch {
	case !spec.Suspend && !s.Suspended && !tooMany:
		say(corev1.ConditionFalse, "", "")
	case !spec.Suspend && s.Suspended:
		if waiting := in.waitToResume(p, tooMany); waiting != "" {
			say(corev1.ConditionTrue, reason, reason+": it does not go on yet: "+waiting)
			p.waits = true
			return
		}
		last := in.lastRun(s, times)
		if d := in.dueRun(last, times); !d.Due.IsZero() {
			recordSuspended(s, times, last, d)
		}
		s.Suspended, s.Failure = false, 0
		begun := in.now.Add(-times.Delay)
		s.LastScheduleTime = ptr.To(metav1.NewTime(laterOf(begun, lastScheduled(s, begun))))
		say(corev1.ConditionFalse, "", "")
	default:
		p.suspend, s.Suspended = !spec.Suspend, true
		switch {
		case tooMany:
			say(corev1.ConditionTrue, harvesterv1.ReasonMaxFailure, fmt.Sprintf("%s: %d backups have failed one "+
				"after the other: put right what status.runs says, and set spec.suspend to false",
				harvesterv1.ReasonMaxFailure, s.Failure))
		case reason != harvesterv1.ReasonMaxFailure:
			say(corev1.ConditionTrue, reason, reason+": spec.suspend is true")
		}
	}
}

// waitToResume says what a schedule that is to go on waits for, or "". After too many failures, those backups go first.
func (in *input) waitToResume(p *plan, tooMany bool) string {
	if in.location != "" {
		return in.location
	}
	if !tooMany {
		return ""
	}
	p.remove = nil
	left := ""
	for _, b := range in.backups {
		if b.HasFailed() && !schedule.IsPinned(b) {
			p.remove, left = append(p.remove, b), b.Name
		}
	}
	if left == "" {
		return ""
	}
	return "the backups that failed are being removed; VirtualMachineBackup " + left + " is still there"
}

// decideRun makes the backup that is due, if one is, and records those for which there is none.
func (in *input) decideRun(p *plan, times *schedule.Times) {
	s := &p.status
	last := in.lastRun(s, times)
	s.LastScheduleTime, s.ObservedCron = ptr.To(metav1.NewTime(last)), times.String()
	d := in.dueRun(last, times)
	asked := in.dueRequest(s)
	if d.Due.IsZero() && asked.IsZero() {
		in.decideRetry(p, times)
		return
	}
	running := in.unfinishedBackup()
	if d.Due.IsZero() && running != "" && !s.Suspended {
		return // what was asked for is made when that has ended
	}
	run := harvesterv1.ScheduledRun{Time: metav1.NewTime(asked), Result: harvesterv1.RunStarted}
	if !d.Due.IsZero() {
		s.LastScheduleTime, run.Time = ptr.To(metav1.NewTime(d.Due)), metav1.NewTime(d.Due)
	}
	if !asked.IsZero() {
		s.LastRequestedTime, run.Reason = ptr.To(metav1.NewTime(asked)), harvesterv1.RunRequested
	}
	switch {
	case s.Suspended && d.Due.IsZero():
		recordRun(s, skippedRun(asked, harvesterv1.SkippedSuspended, "the schedule is suspended"))
		return
	case s.Suspended:
		recordSuspended(s, times, last, d)
		return
	case d.Missed > 0:
		recordMissed(s, times, last, d.Missed)
	}
	switch {
	case running != "":
		recordRun(s, skippedRun(run.Time.Time, harvesterv1.SkippedOverlap, "VirtualMachineBackup %s of the run before "+
			"had not ended", running))
	case !in.machine:
		recordRun(s, skippedRun(run.Time.Time, harvesterv1.SkippedNoMachine, "virtual machine %s does not exist",
			in.schedule.Spec.VMBackupSpec.Source.Name))
	default:
		p.create = newBackup(in.schedule, in.freeMinute(run.Time.Time), in.startBy(times))
		if d.Due.IsZero() {
			p.create.Annotations[annotationRequested] = asked.UTC().Format(time.RFC3339)
		}
		run.Backup = p.create.Name
		recordRun(s, run)
	}
}

// dueRun returns the latest run that is due after the last one, and how many were due before it.
func (in *input) dueRun(last time.Time, times *schedule.Times) cron.Decision {
	return times.Decide(last, in.now.Add(-times.Delay), 0)
}

// freeMinute returns the first minute from one on that no backup of the schedule has in its name: another attempt, or a
// clock that was wrong, may have taken it.
func (in *input) freeMinute(minute time.Time) time.Time {
	for slices.ContainsFunc(in.backups, func(b *harvesterv1.VirtualMachineBackup) bool {
		return b.Name == schedule.BackupName(in.schedule, minute)
	}) {
		minute = minute.Add(time.Minute)
	}
	return minute
}

// recordSuspended records a run for which no backup is made because the schedule is suspended, and those that were due
// before it.
func recordSuspended(
	s *harvesterv1.ScheduleVMBackupStatus, times *schedule.Times, last time.Time, d cron.Decision,
) {
	first := d.Due
	if d.Missed > 0 {
		first = times.Next(last)
	}
	recordRun(s, harvesterv1.ScheduledRun{
		Time: metav1.NewTime(first), LastTime: ptr.To(metav1.NewTime(d.Due)), Count: d.Missed + 1,
		Result: harvesterv1.RunSkipped, Reason: harvesterv1.SkippedSuspended, Message: "the schedule is suspended",
	})
}

// recordMissed records runs that were due after last, and that nobody made.
func recordMissed(s *harvesterv1.ScheduleVMBackupStatus, times *schedule.Times, last time.Time, missed int) {
	if missed < 1 {
		return
	}
	recordRun(s, harvesterv1.ScheduledRun{
		Time: metav1.NewTime(times.Next(last)), Count: missed, Result: harvesterv1.RunMissed,
		Message: "Varve's controller did not run, or the API server did not answer: the latest run is made instead",
	})
}

// lastRun returns the latest due time that was dealt with. A schedule that is new, or whose times have changed, begins
// now: what would have been due before is none of its business.
func (in *input) lastRun(s *harvesterv1.ScheduleVMBackupStatus, times *schedule.Times) time.Time {
	last := lastScheduled(s, in.schedule.CreationTimestamp.Time)
	begun := in.now.Add(-times.Delay)
	switch {
	case last.Sub(in.now) > clockError:
		return begun
	case s.LastScheduleTime != nil && s.ObservedCron != times.String():
		return laterOf(begun, last)
	}
	return last
}

// startBy returns when a backup that is made now has to have begun: before the next one is due, so that its failure is
// counted by then.
func (in *input) startBy(times *schedule.Times) time.Time {
	next := times.Begin(in.now.Add(-times.Delay))
	if next.Sub(in.now) < leastWindow {
		next = times.Begin(next.Add(-times.Delay))
	}
	return next.Add(-startMargin)
}

// unfinishedBackup returns the name of a backup that has not ended, or "".
func (in *input) unfinishedBackup() string {
	for _, b := range in.backups {
		if b.DeletionTimestamp == nil && !b.IsReady() && !b.HasFailed() {
			return b.Name
		}
	}
	return ""
}

// lastGood returns when the latest backup was complete that can be restored.
func lastGood(backups []*harvesterv1.VirtualMachineBackup) *metav1.Time {
	for _, b := range slices.Backward(backups) {
		if b.IsReady() && b.DeletionTimestamp == nil {
			return b.Status.CreationTime
		}
	}
	return nil
}

func laterOf(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// describeBackups returns what the status says of the backups.
func describeBackups(backups []*harvesterv1.VirtualMachineBackup) (all []harvesterv1.VMBackupInfo) {
	backups = backups[max(len(backups)-backupsListed, 0):]
	disks := 0
	for _, b := range slices.Backward(backups) {
		info := harvesterv1.VMBackupInfo{Name: b.Name, ReadyToUse: b.Status.ReadyToUse, Error: b.Status.Error}
		if disks += len(b.Status.VolumeBackups); disks <= disksListed {
			for _, v := range b.Status.VolumeBackups {
				info.VolumeBackupInfo = append(info.VolumeBackupInfo, harvesterv1.VolumeBackupInfo{
					Name: v.Name, ReadyToUse: v.ReadyToUse, Error: v.Error,
				})
			}
		}
		all = append(all, info)
	}
	slices.Reverse(all)
	return all
}
