package push

import (
	"context"
	"errors"
	"time"

	"github.com/varvebackup/varve/internal/domain"
	"github.com/varvebackup/varve/internal/launcher/backupjob"
)

// settleTime is how long after a failed job the launcher waits to learn that the guest has ended.
const settleTime = 2 * time.Second

// cleanUp undoes what a failed backup left, in the order that frees the guest first, and returns why the backup
// failed. The message lists what could not be undone. The handler later tries again to delete unnamed checkpoints and partial
// directories.
func (j *Job) cleanUp(err error) *Failure {
	s := j.recordSight()
	if j.progress.begun {
		err = errors.Join(err, j.endJob())
	}
	if j.guestEnd() == GuestLives && context.Cause(j.ctx) == nil {
		j.awaitGuestEnd()
	}
	s.guest, s.cause = j.guestEnd(), context.Cause(j.ctx)
	failure := classifyFailure(err, s)
	if problem := errors.Join(j.freeGuest(), j.freeTarget()); problem != nil {
		failure.Message += "; not everything could be cleaned up: " + problem.Error()
	}
	return failure
}

// recordSight records the facts that the cleanup destroys.
func (j *Job) recordSight() sight {
	var s sight
	if j.progress.volume == nil {
		return s
	}
	// If the free space is unknown, the failure is not blamed on the target.
	if free, err := j.progress.volume.FreeBytes(); err == nil {
		s.freeBytes, s.freeKnown = free, j.progress.begun
	}
	return s
}

// endJob aborts libvirt's job if it is running and waits for its end.
func (j *Job) endJob() error {
	if j.progress.copied || j.guestEnd() != GuestLives {
		return nil
	}
	return j.watcher.AbortUntilIdle(context.WithoutCancel(j.ctx))
}

// endStray ends a job that an earlier backup left because libvirt did not answer its begin or its abort in time. The
// launcher makes one backup at a time, so a job that runs before this backup has begun belongs to no current backup.
func (j *Job) endStray(ctx context.Context) error {
	job, err := j.watcher.Job(ctx)
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
		wait := j.cfg.Clock.NewTimer(backupjob.PollInterval)
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
	ctx, cancel := j.boundedContext(backupjob.CallTimeout)
	defer cancel()
	info, err := j.cfg.Guest.Info(ctx)
	if err != nil {
		return backupjob.IsGone(err)
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

// freeTarget removes the partial directory. The volume is open, so if it was unmounted meanwhile, this still works or does nothing.
func (j *Job) freeTarget() error {
	if j.progress.volume == nil {
		return nil
	}
	var err error
	if j.progress.partial {
		err = j.progress.volume.Discard(j.req.Directory)
	}
	return errors.Join(err, j.progress.volume.Close())
}
