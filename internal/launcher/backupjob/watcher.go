package backupjob

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/utils/clock"

	"github.com/varvebackup/varve/internal/domain"
	"github.com/varvebackup/varve/internal/errclass"
)

const (
	// PollInterval is how often libvirt is asked about the job.
	PollInterval = 250 * time.Millisecond
	// CallTimeout bounds one short call to libvirt.
	CallTimeout = 10 * time.Second
	// AbortTimeout is how long libvirt's job may take to end after an abort.
	AbortTimeout = 30 * time.Second
	// IdlePolls is how many "no job runs" answers make a job count as ended although nothing else has said so.
	IdlePolls = 4
	// FailedPolls is how many calls may fail before the backup does, if the job is not seen active in between.
	FailedPolls = 20
)

// JobError judges libvirt's job after its end. Only a reported success counts: a job that libvirt knows nothing about has
// failed.
func JobError(job domain.JobInfo) error {
	switch {
	case job.Err != nil:
		return fmt.Errorf("backup job: %w", job.Err)
	case !job.Known:
		return errors.New("backup job: it ended and libvirt does not know how")
	}
	return nil
}

// Watcher asks about the job of a guest and ends it. libvirt runs one backup job of a domain at a time, and continues it
// when its caller has given up.
type Watcher struct {
	Guest Guest
	Clock clock.WithTicker
	// Completed has an event when libvirt says that a job has ended. The event may be lost, or be a late one of an
	// earlier job.
	Completed <-chan error
}

// Query returns what libvirt says about the job.
func (w *Watcher) Query(ctx context.Context) (domain.JobInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	return w.Guest.BackupJob(ctx)
}

// AbortUntilIdle aborts the job until libvirt has none, or the guest has ended. It gives up after AbortTimeout.
func (w *Watcher) AbortUntilIdle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, AbortTimeout)
	defer cancel()
	for {
		job, err := w.Query(ctx)
		switch {
		case IsGone(err), err == nil && !job.Active:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("the backup job does not end: %w", ctx.Err())
		}
		// Try again each time: libvirt refuses while it is still busy beginning the job.
		if IsGone(w.Guest.AbortBackup(ctx)) {
			return nil
		}
		timer := w.Clock.NewTimer(PollInterval)
		select {
		case <-timer.C():
		case <-w.Completed:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// FreeGuest resumes the guest if an I/O error paused it. A guest that has ended does not need that.
func (w *Watcher) FreeGuest(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	info, err := w.Guest.Info(ctx)
	if err == nil && IsPausedByIOError(info.State, info.Reason) {
		err = w.Guest.Resume(ctx)
	}
	if err != nil && !IsGone(err) {
		return fmt.Errorf("resume the guest: %w", err)
	}
	return nil
}

// DeleteCheckpoint deletes a checkpoint. The checkpoints of a guest that has ended are gone.
func (w *Watcher) DeleteCheckpoint(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	if err := w.Guest.DeleteCheckpoint(ctx, name); err != nil && !IsGone(err) {
		return fmt.Errorf("delete checkpoint %s: %w", name, err)
	}
	return nil
}

// IsGone reports whether an error says that no domain is running that could answer.
func IsGone(err error) bool {
	return errors.Is(err, domain.ErrNotRunning) || errors.Is(err, errclass.NotFound) || errors.Is(err, domain.ErrClosed)
}

// IsPausedByIOError reports whether an I/O error paused the guest.
func IsPausedByIOError(s domain.State, r domain.Reason) bool {
	return s == domain.StatePaused && r == domain.ReasonIOError
}
