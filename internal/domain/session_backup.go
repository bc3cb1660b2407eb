//go:build libvirt_dlopen

package domain

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
	"libvirt.org/go/libvirt"

	"github.com/varvebackup/varve/internal/errclass"
)

// PrepareBackup checks a backup and prepares everything that needs no point in time, so that begin, which a
// frozen guest waits for, has little left to do. The target files must exist (CreateTarget) when begin is called.
// libvirt never deletes them.
//
// ErrBusy: another job is running. errclass.Invalid: a disk does not exist or is not tracked, or a target is no longer what
// CreateTarget made. ErrNotRunning: the domain is not running.
func (s *Session) PrepareBackup(ctx context.Context, b Backup) (begin BeginFunc, err error) {
	var job, checkpoint string
	err = s.withDomain(ctx, "prepare backup", func(d *libvirt.Domain) error {
		// libvirt would wait 30 seconds for another backup's job to end.
		if running, err := backupJob(d); err != nil {
			return err
		} else if running.Active {
			return fmt.Errorf("%w: another backup runs", ErrBusy)
		}
		_, disks, err := disksOf(d)
		if err != nil {
			return err
		}
		job, checkpoint, err = backupXML(b.forLibvirt(), disks)
		return err
	})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		return s.withDomain(ctx, "begin backup", func(d *libvirt.Domain) error {
			// The guest may be frozen: if a target hangs, the caller's context ends this, too.
			if err := checkTargets(b); err != nil {
				return err
			}
			select {
			case <-ctx.Done(): // whoever gave up may have removed the targets
				return ctx.Err()
			default:
			}
			err := d.BackupBegin(job, checkpoint, libvirt.DOMAIN_BACKUP_BEGIN_REUSE_EXTERNAL)
			if err == nil && ctx.Err() != nil {
				// The caller has given up. A job that nobody watches would hold up the guest's writes.
				return errors.Join(ctx.Err(), d.AbortJob())
			}
			return err
		})
	}, nil
}

// checkTargets checks that QEMU, which opens targets by path, will find what CreateTarget made. A process that writes
// to a target at the same moment can still win the race.
func checkTargets(b Backup) error {
	for _, d := range b.Disks {
		f, err := os.OpenFile(d.Target, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if err == nil {
			err = errors.Join(plainImage(f), f.Close())
		}
		if err != nil {
			return fmt.Errorf("target %s: %w", d.Target, err)
		}
	}
	return nil
}

// BackupJob returns the progress of the backup job, or the outcome of the last one in this run of the guest. When it
// reports that a job has ended, QEMU has closed the target files.
func (s *Session) BackupJob(ctx context.Context) (JobInfo, error) {
	return queryDomain(ctx, s, "backup job", func(d *libvirt.Domain) (JobInfo, error) {
		job, err := backupJob(d)
		if err == nil && job.Known && !job.Active {
			awaitCleanup(d)
		}
		return job, err
	})
}

// awaitCleanup waits until libvirt has cleaned up after a job. libvirt reports the end of a backup before it closes the
// files, but it holds the domain until then, so a query to QEMU waits for that.
func awaitCleanup(d *libvirt.Domain) {
	// It fails if QEMU is gone. Then no file is open.
	_, _ = d.QemuMonitorCommand(`{"execute":"query-status"}`, libvirt.DOMAIN_QEMU_MONITOR_COMMAND_DEFAULT)
}

func backupJob(d *libvirt.Domain) (JobInfo, error) {
	now, err := d.GetJobStats(0)
	if err != nil {
		return JobInfo{}, err
	}
	if now.Type != libvirt.DOMAIN_JOB_NONE && now.Operation == libvirt.DOMAIN_JOB_OPERATION_BACKUP {
		out := jobInfo(now)
		out.Active = true
		return out, nil
	}
	ended, err := d.GetJobStats(libvirt.DOMAIN_JOB_STATS_COMPLETED | libvirt.DOMAIN_JOB_STATS_KEEP_COMPLETED)
	if err != nil || ended.Type == libvirt.DOMAIN_JOB_NONE || ended.Operation != libvirt.DOMAIN_JOB_OPERATION_BACKUP {
		return JobInfo{}, err
	}
	out := jobInfo(ended)
	out.Err = jobError(ended)
	return out, nil
}

func jobInfo(info *libvirt.DomainJobInfo) JobInfo {
	return JobInfo{Known: true, ProcessedBytes: info.DiskProcessed, TotalBytes: info.DiskTotal, TempBytes: info.DiskTempUsed}
}

// AbortBackup asks the running backup job to end. EventBackupCompleted, with an error, reports when it has. The
// checkpoint that the backup made stays until DeleteCheckpoint. It is no error if there is no job.
func (s *Session) AbortBackup(ctx context.Context) error {
	err := s.withDomain(ctx, "abort backup", func(d *libvirt.Domain) error {
		if job, err := backupJob(d); err != nil || !job.Active {
			return err
		}
		return d.AbortJob()
	})
	// The job or the guest may have ended in between.
	if errors.Is(err, ErrNotRunning) || errors.Is(err, errclass.NotFound) {
		return nil
	}
	return err
}
