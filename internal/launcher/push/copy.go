package push

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/varvebackup/varve/internal/domain"
	"github.com/varvebackup/varve/internal/launcher/backupjob"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
)

const (
	// stalledAfter is how long the job may copy nothing. While the job runs, a guest's write to a cluster that is not
	// copied yet waits for the target, so a target that hangs holds up the guest. This bounds how long.
	stalledAfter = time.Minute
)

// awaitCopy waits for the end of libvirt's job. An event is only a reason to check; what libvirt says about the job
// counts, because an event may be lost, or be a late one of an earlier job.
func (j *job) awaitCopy(ctx context.Context) error {
	ticker := j.cfg.Clock.NewTicker(backupjob.PollInterval)
	defer ticker.Stop()
	var idle, failed int
	moved := movement{since: j.cfg.Clock.Now()}
	for {
		var event *error
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case err := <-j.Completed():
			event = &err
		case <-ticker.C():
		}
		job, err := j.Query(ctx)
		switch {
		case err != nil:
			if failed++; failed > backupjob.FailedPolls || event != nil {
				return fmt.Errorf("watch backup job: %w", errors.Join(err, valueOf(event)))
			}
		case job.Active:
			failed, idle = 0, 0
			j.reportProgress(job)
			if moved.hasStalled(job, j.cfg.Clock.Now()) {
				return stalledFailure()
			}
		case event != nil:
			return j.jobEnded(job, *event)
		default:
			if idle++; idle >= backupjob.IdlePolls {
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

func (m *movement) hasStalled(job domain.JobInfo, now time.Time) bool {
	if job.ProcessedBytes != m.processed {
		m.processed, m.since = job.ProcessedBytes, now
	}
	return now.Sub(m.since) >= stalledAfter
}

func valueOf(err *error) error {
	if err == nil {
		return nil
	}
	return *err
}

// reportProgress includes the bytes that will be hashed in the total from the beginning, so that the total stays the same.
func (j *job) reportProgress(job domain.JobInfo) {
	j.UpdateState(func(b *pb.Backup) {
		b.TotalBytes, b.ProcessedBytes = job.TotalBytes+j.progress.sealBytes, job.ProcessedBytes
	})
}

// jobEnded judges libvirt's job after its end, and what the event about it said.
func (j *job) jobEnded(job domain.JobInfo, eventErr error) error {
	j.JobEnded()
	if eventErr != nil {
		return fmt.Errorf("backup job: %w", eventErr)
	}
	if err := backupjob.JobError(job); err != nil {
		return err
	}
	j.UpdateState(func(b *pb.Backup) {
		b.TotalBytes = max(b.TotalBytes, job.TotalBytes+j.progress.sealBytes)
		b.ProcessedBytes = b.TotalBytes - j.progress.sealBytes
	})
	return nil
}
