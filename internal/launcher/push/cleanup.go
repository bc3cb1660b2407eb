package push

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/varvebackup/varve/internal/domain"
	"github.com/varvebackup/varve/internal/errclass"
)

const (
	// settleTime is how long after a failed job the launcher waits to learn that the guest has ended.
	settleTime = 2 * time.Second
	// abortTimeout bounds how long libvirt's job may take to end after an abort.
	abortTimeout = 30 * time.Second
)

// cleanup undoes what a failed backup left, in the order that frees the guest first, and returns why the backup
// failed. The message lists what could not be undone. The handler later tries again to delete unnamed checkpoints and partial
// directories.
func (j *Job) cleanup(err error) *Failure {
	s := j.look()
	if j.progress.begun {
		err = errors.Join(err, j.endJob())
	}
	if j.guestEnd() == GuestLives && context.Cause(j.ctx) == nil {
		j.settle()
	}
	s.guest, s.cause = j.guestEnd(), context.Cause(j.ctx)
	failure := classify(err, s)
	if problem := errors.Join(j.freeGuest(), j.freeTarget()); problem != nil {
		failure.Message += "; not everything could be cleaned up: " + problem.Error()
	}
	return failure
}

// look records the facts that the cleanup destroys.
func (j *Job) look() sight {
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
	return j.abortUntilIdle()
}

// endStray ends a job that an earlier backup left because libvirt did not answer its begin or its abort in time. The
// launcher makes one backup at a time, so a job that runs before this backup has begun belongs to no current backup.
func (j *Job) endStray(ctx context.Context) error {
	job, err := j.backupJob(ctx)
	if err != nil || !job.Active {
		return err
	}
	j.cfg.Log.Warn("aborting a backup job that an earlier backup left", "backup", j.req.Name, "uid", j.req.Uid)
	return j.abortUntilIdle()
}

func (j *Job) abortUntilIdle() error {
	ctx, cancel := j.bounded(abortTimeout)
	defer cancel()
	for {
		job, err := j.backupJob(ctx)
		switch {
		case gone(err), err == nil && !job.Active:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("the backup job does not end: %w", ctx.Err())
		}
		// Try again each time: libvirt refuses while it is still busy beginning the job.
		abortErr := j.cfg.Guest.AbortBackup(ctx)
		if gone(abortErr) {
			return nil
		}
		timer := j.cfg.Clock.NewTimer(progressEvery)
		select {
		case <-timer.C():
		case <-j.completed:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// gone says that no domain is running that could answer.
func gone(err error) bool {
	return errors.Is(err, domain.ErrNotRunning) || errors.Is(err, errclass.NotFound) || errors.Is(err, domain.ErrClosed)
}

// settle waits for the news of the guest's end, because that end fails the job before the launcher learns about it.
func (j *Job) settle() {
	timer := j.cfg.Clock.NewTimer(settleTime)
	defer timer.Stop()
	for {
		if !j.guestIsEnding() {
			return
		}
		wait := j.cfg.Clock.NewTimer(progressEvery)
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
	ctx, cancel := j.bounded(callTimeout)
	defer cancel()
	info, err := j.cfg.Guest.Info(ctx)
	if err != nil {
		return gone(err)
	}
	return info.State == domain.StateShutOff || info.State == domain.StateShuttingDown
}

// freeGuest resumes a guest that an I/O error paused, and deletes the failed backup's checkpoint.
func (j *Job) freeGuest() error {
	if !j.progress.begun || j.guestEnd() != GuestLives {
		return nil
	}
	ctx, cancel := j.bounded(callTimeout)
	defer cancel()
	var errs []error
	info, err := j.cfg.Guest.Info(ctx)
	if err == nil && pausedByTrouble(info.State, info.Reason) {
		err = j.cfg.Guest.Resume(ctx)
	}
	if err != nil && !gone(err) {
		errs = append(errs, fmt.Errorf("resume the guest: %w", err))
	}
	if j.req.Checkpoint != "" {
		if err := j.cfg.Guest.DeleteCheckpoint(ctx, j.req.Checkpoint); err != nil && !gone(err) {
			errs = append(errs, fmt.Errorf("delete checkpoint %s: %w", j.req.Checkpoint, err))
		}
	}
	return errors.Join(errs...)
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
