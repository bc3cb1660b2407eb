package backupjob

import (
	"context"
	"errors"
	"time"

	"github.com/varvebackup/varve/internal/domain"
)

// settleTime is how long after a failed job the launcher waits to learn that the guest has ended.
const settleTime = 2 * time.Second

// cleanUp undoes what a failed backup left, in the order that frees the guest first, and returns why the backup
// failed. The message lists what could not be undone. The handler later tries again to delete unnamed checkpoints and partial
// directories.
func (j *Job) cleanUp(err error) *Failure {
	var failure *Failure
	if j.progress.begun {
		failure = j.releaseGuest(err)
	}
	if failure == nil && j.guestEnd() == GuestLives && context.Cause(j.ctx) == nil {
		j.awaitGuestEnd()
	}
	var problem error
	if j.progress.begun && j.req.Checkpoint != "" && j.guestEnd() == GuestLives {
		problem = j.watcher.DeleteCheckpoint(j.life, j.req.Checkpoint)
	}
	if failure == nil {
		failure = j.judgeFailure(err)
	}
	if problem = errors.Join(problem, j.protect(j.mode.Discard)); problem != nil {
		failure.Message += "; not everything could be cleaned up: " + problem.Error()
	}
	return failure
}

// releaseGuest ends libvirt's job, and resumes the guest if the job paused it. QEMU writes into the files of the backup until
// then, so that releaseGuest returns only when both have succeeded or the guest has ended. If that takes long, it
// returns the failure that it has reported meanwhile.
func (j *Job) releaseGuest(err error) (reported *Failure) {
	j.untilGuestIsFree(j.tryRelease, func(problem error) {
		reported = j.judgeFailure(errors.Join(err, problem))
		j.reportUnreleased(*reported, problem)
	})
	return reported
}

// untilGuestIsFree calls try until it succeeds or the guest has ended. If that takes long, it calls report, once.
func (j *Job) untilGuestIsFree(try func() error, report func(error)) {
	since, reported := j.cfg.Clock.Now(), false
	for j.guestEnd() == GuestLives {
		err := j.protect(try)
		if err == nil || j.guestEnd() != GuestLives {
			return
		}
		if !reported && j.cfg.Clock.Since(since) >= AbortTimeout {
			reported = true
			report(err)
		}
		timer := j.cfg.Clock.NewTimer(PollInterval)
		select {
		case <-timer.C():
		case <-j.life.Done():
		}
		timer.Stop()
	}
}

// tryRelease tries to end libvirt's job for a while. The guest is resumed even if the job runs on.
func (j *Job) tryRelease() error {
	var err error
	if !j.progress.ended {
		err = j.watcher.AbortUntilIdle(j.life)
		j.progress.ended = err == nil
	}
	return errors.Join(err, j.watcher.FreeGuest(j.life))
}

// reportUnreleased says that the backup has failed before everything is undone. It is not done: no other backup begins.
func (j *Job) reportUnreleased(failure Failure, problem error) {
	j.cfg.Log.Error("the guest is not free of a failed backup, trying again", "backup", j.req.Name, "uid", j.req.Uid, "failure", failure.Kind.String(), "error", problem)
	failure.Message += "; Varve keeps trying to end it in libvirt, and removes no file before that: " + problem.Error()
	j.UpdateState(failure.applyTo)
}

func (j *Job) judgeFailure(err error) *Failure {
	explain := func(error) *Failure { return nil }
	err = errors.Join(err, j.protect(func() error {
		explain = j.mode.Inspect(j.progress.begun)
		return nil
	}))
	failure := *classifyFailure(err, context.Cause(j.ctx), j.guestEnd(), explain)
	return &failure // whoever gave it keeps theirs as it is
}

// endStray ends a job that an earlier backup left because libvirt did not answer its begin in time. The launcher makes one
// backup at a time, so a job that runs before this backup has begun belongs to no current backup.
func (j *Job) endStray(ctx context.Context) error {
	job, err := j.watcher.Query(ctx)
	if err != nil || !job.Active {
		return err
	}
	j.cfg.Log.Warn("aborting a backup job that an earlier backup left", "backup", j.req.Name, "uid", j.req.Uid)
	return errors.Join(j.watcher.AbortUntilIdle(j.life), j.watcher.FreeGuest(j.life))
}

// awaitGuestEnd waits for the news of the guest's end, because that end fails the job before the launcher learns about it.
func (j *Job) awaitGuestEnd() {
	timer := j.cfg.Clock.NewTimer(settleTime)
	defer timer.Stop()
	for {
		if !j.guestIsEnding() {
			return
		}
		wait := j.cfg.Clock.NewTimer(PollInterval)
		select {
		case <-j.ctx.Done(): // the guest's end, among others, ends it
			wait.Stop()
			return
		case <-timer.C():
			wait.Stop()
			return
		case <-wait.C():
		}
	}
}

func (j *Job) guestIsEnding() bool {
	ctx, cancel := j.boundedContext(CallTimeout)
	defer cancel()
	info, err := j.cfg.Guest.Info(ctx)
	if err != nil {
		return IsGone(err)
	}
	return info.State == domain.StateShutOff || info.State == domain.StateShuttingDown
}
