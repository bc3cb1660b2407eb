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
	// progressEvery is how often libvirt is asked for the job's progress.
	progressEvery = 250 * time.Millisecond
	// idlePolls is how many "no job runs" answers make the job count as ended although no event said so.
	idlePolls = 4
	// failedPolls is how many calls may fail before the backup does, if the job is not seen active in between.
	failedPolls = 20
	// stalledAfter is how long the job may copy nothing. While the job runs, a guest's write to a cluster that is not
	// copied yet waits for the target, so a target that hangs holds up the guest. This bounds how long.
	stalledAfter = time.Minute
	// callTimeout bounds one short call to libvirt.
	callTimeout = 10 * time.Second
)

// copy waits for the end of libvirt's job. An event is only a reason to check; what libvirt says about the job
// counts, because an event may be lost, or be a late one of an earlier job.
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

// movement is how far a job was when it last made progress, and when that was.
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

// report includes the bytes that will be hashed in the total from the beginning, so that the total stays the same.
func (j *Job) report(job domain.JobInfo) {
	j.update(func(b *pb.Backup) {
		b.TotalBytes, b.ProcessedBytes = job.TotalBytes+j.progress.sealBytes, job.ProcessedBytes
	})
}

// jobEnded judges libvirt's job after its end. Only a reported success counts: a job that libvirt knows nothing about has failed.
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
