package push

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/varvebackup/varve/internal/domain"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
)

const (
	// progressEvery is how often libvirt is asked how far it is.
	progressEvery = 250 * time.Millisecond
	// idlePolls is after how many answers "no job runs" the job counts as ended although no event said so.
	idlePolls = 4
	// failedPolls is how many answers in a row may be missing.
	failedPolls = 20
	// stalledAfter is for how long the job may move nothing. A write of the guest to a cluster that was not copied yet
	// waits for the target as long as the job runs: a target that has hung holds up the guest, so that the bound is the guest's.
	stalledAfter = time.Minute
	// callTimeout bounds one short call of libvirt.
	callTimeout = 10 * time.Second
)

// copy waits for the end of libvirt's job. The event is only the reason to look: what libvirt says of the job counts, because an event
// may be lost, or be a late one of an earlier job.
func (j *Job) copy(ctx context.Context) error {
	ticker := j.cfg.Clock.NewTicker(progressEvery)
	defer ticker.Stop()
	var idle, failed int
	moved := movement{since: j.cfg.Clock.Now()}
	for {
		var event *error
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case err := <-j.completed:
			event = &err
		case <-ticker.C():
		}
		job, err := j.backupJob(ctx)
		switch {
		case err != nil:
			if failed++; failed > failedPolls || event != nil {
				return fmt.Errorf("watch backup job: %w", errors.Join(err, deref(event)))
			}
		case job.Active:
			failed, idle = 0, 0
			j.report(job)
			if moved.stalled(job, j.cfg.Clock.Now()) {
				return stalled()
			}
		case event != nil:
			return j.jobEnded(job, *event)
		default:
			if idle++; idle >= idlePolls {
				return j.jobEnded(job, nil)
			}
		}
	}
}

// movement is how far a job was when it was last seen to be further than before.
type movement struct {
	processed uint64
	since     time.Time
}

func (m *movement) stalled(job domain.JobInfo, now time.Time) bool {
	if job.ProcessedBytes != m.processed {
		m.processed, m.since = job.ProcessedBytes, now
	}
	return now.Sub(m.since) >= stalledAfter
}

func deref(err *error) error {
	if err == nil {
		return nil
	}
	return *err
}

func (j *Job) backupJob(ctx context.Context) (domain.JobInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return j.cfg.Guest.BackupJob(ctx)
}

// report counts what the files cost to hash from the beginning, so that the total stays the same.
func (j *Job) report(job domain.JobInfo) {
	j.update(func(b *pb.Backup) {
		b.TotalBytes, b.ProcessedBytes = job.TotalBytes+j.progress.sealBytes, job.ProcessedBytes
	})
}

// jobEnded judges libvirt's job, which runs no more. Success must be said: a job of which nothing is known has failed.
func (j *Job) jobEnded(job domain.JobInfo, eventErr error) error {
	j.progress.copied = true
	switch {
	case eventErr != nil:
		return fmt.Errorf("backup job: %w", eventErr)
	case job.Err != nil:
		return fmt.Errorf("backup job: %w", job.Err)
	case !job.Known:
		return errors.New("backup job: it ended and libvirt does not know how")
	}
	j.update(func(b *pb.Backup) {
		b.TotalBytes = max(b.TotalBytes, job.TotalBytes+j.progress.sealBytes)
		b.ProcessedBytes = b.TotalBytes - j.progress.sealBytes
	})
	return nil
}
