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
	explain := j.mode.Inspect(j.progress.begun)
	if j.progress.begun {
		err = errors.Join(err, j.endJob())
	}
	if j.guestEnd() == GuestLives && context.Cause(j.ctx) == nil {
		j.awaitGuestEnd()
	}
	failure := classifyFailure(err, context.Cause(j.ctx), j.guestEnd(), explain)
	if problem := errors.Join(j.freeGuest(), j.mode.Discard()); problem != nil {
		failure.Message += "; not everything could be cleaned up: " + problem.Error()
	}
	return failure
}

// endJob aborts libvirt's job if it is running and waits for its end.
func (j *Job) endJob() error {
	if j.progress.ended || j.guestEnd() != GuestLives {
		return nil
	}
	return j.watcher.AbortUntilIdle(context.WithoutCancel(j.ctx))
}

// endStray ends a job that an earlier backup left because libvirt did not answer its begin or its abort in time. The
// launcher makes one backup at a time, so a job that runs before this backup has begun belongs to no current backup.
func (j *Job) endStray(ctx context.Context) error {
	job, err := j.watcher.Query(ctx)
	if err != nil || !job.Active {
		return err
	}
	j.cfg.Log.Warn("aborting a backup job that an earlier backup left", "backup", j.req.Name, "uid", j.req.Uid)
	return j.watcher.AbortUntilIdle(context.WithoutCancel(j.ctx))
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

// freeGuest undoes what the failed backup did to the guest.
func (j *Job) freeGuest() error {
	if !j.progress.begun || j.guestEnd() != GuestLives {
		return nil
	}
	return j.watcher.FreeGuest(context.WithoutCancel(j.ctx), j.req.Checkpoint)
}
