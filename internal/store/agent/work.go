package agent

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/handover"
	"github.com/varvebackup/varve/internal/store/metric"
)

const (
	// maxJobs is how many copies are sealed or read at once. Each takes a processor for its hashes.
	maxJobs = 2
	// A job that failed is tried again after firstRetry, and then after twice as long, up to longestRetry.
	firstRetry   = 5 * time.Second
	longestRetry = 5 * time.Minute
	// maxAttempts is how many attempts in a row may make no progress before a copy has failed.
	maxAttempts = 5
	// failureLasts is how long a further copy has failed before it is tried again by itself.
	failureLasts = 5 * time.Minute
)

// copyKey names a copy.
type copyKey struct{ diskUUID, imageUUID string }

func (k copyKey) String() string { return k.diskUUID + "/" + k.imageUUID }

// copyState is what the agent remembers of a copy that is not ready. A restart forgets it, but for a failure.
type copyState struct {
	job *job // running, or nil
	// attempts is how many in a row made no progress.
	attempts int
	// turn counts all attempts that failed, so that those who have a copy take turns.
	turn      int
	retryAt   time.Time
	lastError string
	progress  int
	// record is what the source has said last.
	record handover.Record
	// failure says why the copy has failed, since failedAt. A first copy has failed in the attempt of the controller that
	// firstAttempt counts.
	failure string
	// refused is spec.checksum of the image if the failure is that the first copy has another one.
	refused      string
	failedAt     time.Time
	failedFirst  bool
	firstAttempt int32
	// gaveUp: the copy has failed because the disk has no space for it, so that nothing of it is kept.
	gaveUp bool
	// recalled: an earlier process of the agent has reported the failure.
	recalled bool
}

// forgetFailure forgets a failure that does not count any more: of a first copy if the controller tries again, and of
// another one after a while.
func (s *copyState) forgetFailure(now time.Time, isFirst bool, attempt int32) {
	again := now.Sub(s.failedAt) >= failureLasts
	if s.recalled {
		s.recalled, s.failedFirst, s.firstAttempt = false, isFirst, attempt
	}
	if s.failedFirst {
		again = isFirst && attempt > s.firstAttempt
	}
	if s.failure != "" && again && s.job == nil {
		*s = copyState{turn: s.turn}
	}
}

// giveUp ends the job of a copy, which has failed.
func (s *copyState) giveUp(failure string, now time.Time, isFirst bool, attempt int32) {
	if s.job != nil {
		s.job.cancel()
	}
	s.failure, s.failedAt, s.failedFirst, s.firstAttempt, s.gaveUp = failure, now, isFirst, attempt, true
}

func (s *copyState) describeRetry() string {
	next := s.retryAt.UTC().Format(time.TimeOnly)
	return fmt.Sprintf("attempt %d failed, and the next one is at %s UTC: %s", s.attempts, next, s.lastError)
}

// job is something that takes long.
type job struct {
	what   action
	cancel context.CancelFunc
	done   chan struct{}
	err    error // valid when done is closed

	progress atomic.Int32 // in percent
	// moved is set when the job made progress that a later attempt does not have to repeat.
	moved atomic.Bool
}

func (j *job) percent() int { return int(j.progress.Load()) }

func (j *job) isDone() bool {
	select {
	case <-j.done:
		return true
	default:
		return false
	}
}

func (j *job) describe(lastError string) string {
	switch j.what {
	case actionSeal, actionSealClone:
		return "what the source wrote is being read back and compared"
	case actionExport:
		return "what the volume had is being read back"
	default:
		return lastError
	}
}

// startJob runs do beside the loop, which is woken up when it has ended. It returns false if enough jobs run.
func (a *agent) startJob(ctx context.Context, s *copyState, what action, do func(context.Context, *job) error) bool {
	running := 0
	for key, other := range a.copies {
		if other.job != nil && !other.job.isDone() && !a.isSilent(key.diskUUID) {
			running++
		}
	}
	if running >= maxJobs && what != actionCreateSource && what != actionCloneImage {
		return false
	}
	ctx, cancel := context.WithCancel(ctx)
	j := &job{what: what, cancel: cancel, done: make(chan struct{})}
	j.progress.Store(int32(s.progress))
	s.job = j
	a.jobs.Go(func() {
		defer a.wakeUp()
		defer close(j.done)
		defer cancel()
		j.err = do(ctx, j)
	})
	return true
}

// cancelJobs ends the jobs on a disk, and waits for them. An error says that one does not end.
func (a *agent) cancelJobs(diskUUID disk.UID) error {
	timer := a.diskClock.NewTimer(closePatience)
	defer timer.Stop()
	for key, s := range a.copies {
		if key.diskUUID != string(diskUUID) || s.job == nil {
			continue
		}
		s.job.cancel()
		select {
		case <-s.job.done:
			s.job = nil
		case <-timer.C():
			return errclass.Errorf(errclass.Transient, "a copy of the image %s is still being made on it, and that has not "+
				"ended yet", key.imageUUID)
		}
	}
	return nil
}

// isSilent says whether a disk is open and does not answer: what works on it holds up nothing else.
func (a *agent) isSilent(diskUUID string) bool {
	for _, d := range a.disks {
		if string(d.UUID) == diskUUID {
			return d.guard.Check() != nil
		}
	}
	return false
}

// finishJob takes note of how a job has ended, and reports whether it has.
func (a *agent) finishJob(s *copyState, firstAttempt int32) bool {
	j := s.job
	if j == nil || !j.isDone() {
		return false
	}
	s.job, s.progress = nil, j.percent()
	switch {
	case j.err == nil:
		*s = copyState{}
		return true
	case errors.Is(j.err, context.Canceled):
		return true
	case j.moved.Load():
		s.attempts = 0
	}
	a.countFailure(metric.OperationCopy)
	s.attempts++
	s.turn++
	s.lastError = j.err.Error()
	s.retryAt = a.Clock.Now().Add(min(longestRetry, firstRetry<<(s.attempts-1)))
	isFirst := j.what != actionSync
	isWrong := isFirst && errors.Is(j.err, errclass.Corrupt) // which no further attempt changes
	if s.attempts >= maxAttempts || isWrong {
		*s = copyState{
			turn: s.turn, failure: describeFailure(j.err), failedAt: a.Clock.Now(), failedFirst: isFirst,
			firstAttempt: firstAttempt,
		}
		if isFirst {
			s.refused = refusedChecksum(j.err)
		}
	}
	return true
}

// refusedChecksum returns the checksum that an image must have, if the error is that it has another one, and otherwise
// "".
func refusedChecksum(err error) string {
	var wrong *disk.ChecksumError
	if errors.As(err, &wrong) {
		return wrong.Wanted
	}
	return ""
}

// describeFailure shortens the checksums of an error: a message has to fit into a line.
func describeFailure(err error) string {
	var wrong *disk.ChecksumError
	if errors.As(err, &wrong) {
		return fmt.Sprintf("the image's %s is %.16s…, and it must be %.16s…: correct spec.checksum or the source",
			wrong.Algorithm, wrong.Found, wrong.Wanted)
	}
	return err.Error()
}
