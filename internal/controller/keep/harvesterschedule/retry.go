package harvesterschedule

import (
	"time"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	"github.com/varvebackup/varve/internal/schedule"
)

// retryAfter is how long after a failure a run makes another backup: after the first one, and after the second one.
// The third failure is that of the run.
var retryAfter = []time.Duration{5 * time.Minute, 15 * time.Minute}

const (
	// leastRetryWindow is how long the other backup has to begin at the least, before the next run is due.
	leastRetryWindow = 5 * time.Minute
	// refusedWithin tells a backup that cannot be made from one that waited in vain: it fails at once.
	refusedWithin = time.Minute
)

// retryTime returns when another backup is made for a run whose backup has failed, or zero. It has the resolution of
// a minute, as the names of backups have.
func (in *input) retryTime(
	run *harvesterv1.ScheduledRun, b *harvesterv1.VirtualMachineBackup, times *schedule.Times,
) time.Time {
	failures := max(run.Attempts, 1)
	if times == nil || failures > len(retryAfter) || wasRefused(b) {
		return time.Time{}
	}
	latest := times.Begin(in.now.Add(-times.Delay)).Add(-startMargin - leastRetryWindow)
	again := in.freeMinute(in.now.Add(retryAfter[failures-1]).Truncate(time.Minute))
	for ; !again.After(latest); again = in.freeMinute(again.Add(time.Minute)) {
		if !times.Next(again.Add(-time.Second)).Equal(again) { // else the minute's name is that of the run due then
			return again
		}
	}
	return time.Time{}
}

// wasRefused says whether a backup failed because of what it is to store, or of the settings: another one would fail
// as well.
func wasRefused(b *harvesterv1.VirtualMachineBackup) bool {
	return b.Status.Group == "" && b.Status.Error.Time != nil &&
		b.Status.Error.Time.Sub(b.CreationTimestamp.Time) < refusedWithin
}

// canRetry says whether the newest run, whose backup has failed, can still make another one.
func (in *input) canRetry(s *harvesterv1.ScheduleVMBackupStatus, times *schedule.Times) bool {
	if times == nil || s.Suspended || in.schedule.Spec.Suspend {
		return false
	}
	return in.dueRun(in.lastRun(s, times), times).Due.IsZero() && in.dueRequest(s).IsZero()
}

// decideRetry makes another backup for the newest run, if it is time.
func (in *input) decideRetry(p *plan, times *schedule.Times) {
	s := &p.status
	run := retryingRun(s)
	if s.Suspended || run == nil || run.RetryTime.After(in.now) {
		return
	}
	switch {
	case in.unfinishedBackup() != "":
		p.waits = true
	case !in.machine:
		run.Result, p.waits = harvesterv1.RunFailed, true
		s.Failure++
		p.ended = append(p.ended, *run)
	default:
		p.create = newBackup(in.schedule, run.RetryTime.Time, in.startBy(times))
		p.create.Annotations[annotationRetryOf] = run.Time.UTC().Format(time.RFC3339)
		noteRetry(run, p.create.Name)
	}
}

// retryingRun returns the newest run if its backup has failed and another one is to be made, or nil.
func retryingRun(s *harvesterv1.ScheduleVMBackupStatus) *harvesterv1.ScheduledRun {
	if len(s.Runs) == 0 || s.Runs[0].Result != harvesterv1.RunRetrying {
		return nil
	}
	return &s.Runs[0]
}

func noteRetry(run *harvesterv1.ScheduledRun, backup string) {
	run.Result, run.Backup, run.Attempts = harvesterv1.RunStarted, backup, max(run.Attempts, 1)+1
}
