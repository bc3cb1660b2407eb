package pull

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"k8s.io/utils/ptr"

	"github.com/varvebackup/varve/internal/domain"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/launcher/backupjob"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/launcher/target"
)

// openTimeout bounds the opening of the exports.
const openTimeout = 30 * time.Second

// mode is a Job as backupjob sees it.
type mode Job

// Prepare implements backupjob.Mode.
func (m *mode) Prepare(ctx context.Context) (domain.BeginFunc, error) {
	volume, err := m.cfg.OpenTarget(m.req.TargetVolume)
	if err != nil {
		return nil, err
	}
	m.scratch.volume = volume
	dirty, err := m.CountDirty(ctx)
	if err != nil {
		return nil, err
	}
	total, err := m.estimateBytes(ctx, dirty)
	if err != nil {
		return nil, err
	}
	m.UpdateState(func(b *pb.Backup) { b.TotalBytes = total })
	if err := m.makeSocketDir(); err != nil {
		return nil, err
	}
	// Begin removes what an earlier attempt left, so check the free space after it.
	m.scratch.made = true
	if err := volume.Begin(m.req.Directory, m.req.Uid); err != nil {
		return nil, err
	}
	if err := m.scratch.checkSpace(len(m.req.Volumes)); err != nil {
		return nil, err
	}
	if m.scratch.probe, err = volume.OpenProbe(m.req.Directory); err != nil {
		return nil, err
	}
	plan := domain.Backup{Checkpoint: m.req.Checkpoint, Socket: m.cfg.Socket}
	for _, v := range m.req.Volumes {
		disk := domain.BackupDisk{Volume: v.Volume, Target: volume.Path(target.PartialFile(m.req.Directory, v.Volume))}
		if v.Incremental {
			disk.Incremental = m.req.BaseCheckpoint
		}
		if err := m.cfg.Images.CreateTarget(ctx, disk.Target, m.cfg.Disks[v.Volume].VirtualBytes); err != nil {
			return nil, fmt.Errorf("scratch of volume %s: %w", v.Volume, err)
		}
		plan.Disks = append(plan.Disks, disk)
	}
	return m.cfg.Guest.PrepareBackup(ctx, plan)
}

// estimateBytes returns how much data the backup has, as far as that can be known without reading it.
func (m *mode) estimateBytes(ctx context.Context, dirty map[string]uint64) (total uint64, err error) {
	for _, v := range m.req.Volumes {
		data, err := m.DataBytes(ctx, v, dirty)
		if err != nil {
			return 0, err
		}
		total += data
	}
	return total, nil
}

func (m *mode) makeSocketDir() error {
	if err := os.MkdirAll(filepath.Dir(m.cfg.Socket), 0o700); err != nil {
		return fmt.Errorf("make the directory of the NBD socket: %w", err)
	}
	return m.removeSocket()
}

func (m *mode) removeSocket() error {
	if err := os.Remove(m.cfg.Socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the NBD socket: %w", err)
	}
	return nil
}

// Move implements backupjob.Mode.
func (m *mode) Move(ctx context.Context) error {
	j := (*Job)(m)
	opening, cancel := context.WithTimeout(ctx, openTimeout)
	err := j.openVolumes(opening)
	cancel()
	if err != nil {
		return err
	}
	defer j.closeVolumes()
	if err := m.serve(ctx); err != nil {
		return err
	}
	m.ConfirmFreeze(ctx) // if the guest gave no answer before
	// Readers end first: libvirt does not wait for them.
	j.closeVolumes()
	if err := m.FinishJob(ctx); err != nil {
		return err
	}
	if err := m.Discard(); err != nil {
		// The backup is whole, and its data is where it was pulled to.
		m.cfg.Log.Warn("scratch files are left", "backup", m.req.Name, "uid", m.req.Uid, "error", err)
	}
	return nil
}

// serve waits for Finish while it watches libvirt's job and the scratch space. The backup is SERVING when it is known whether
// the guest was frozen at the point in time: whoever pulls it relies on that.
func (m *mode) serve(ctx context.Context) error {
	ticker := m.cfg.Clock.NewTicker(backupjob.PollInterval)
	defer ticker.Stop()
	watching, stop := context.WithCancel(ctx)
	defer stop()
	watch := m.scratch.watch(watching, m.cfg.Clock, m.Guard)
	confirmed := make(chan struct{})
	go func() {
		defer close(confirmed)
		m.Guard(func() { m.ConfirmFreeze(watching) })
	}()
	defer func() { stop(); <-confirmed }()
	wait := confirmed
	var ended, failed int
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-wait:
			wait = nil
			m.UpdateState(func(b *pb.Backup) { b.Phase = pb.Backup_SERVING })
		case <-m.finish:
			return nil
		case <-m.Completed():
		case <-ticker.C():
		}
		// First, because libvirt may be silent when the volume is.
		if err := watch.check(m.Snapshot().ScratchUsedBytes); err != nil {
			return err
		}
		job, err := m.Query(ctx)
		switch {
		case err != nil:
			if failed++; failed > backupjob.FailedPolls {
				return fmt.Errorf("watch backup job: %w", err)
			}
			continue
		case !job.Active:
			if ended++; ended >= backupjob.IdlePolls {
				return endedError(job)
			}
			continue
		}
		ended, failed = 0, 0
		if err := (*Job)(m).lostVolume(); err != nil {
			return err
		}
		m.reportProgress(job, watch.freeBytes())
	}
}

// endedError says why a job has ended that nobody has finished.
func endedError(job domain.JobInfo) error {
	if err := backupjob.JobError(job); err != nil {
		return err
	}
	return errors.New("backup job: somebody else ended it")
}

// reportProgress tells whoever follows the state only what has changed.
func (m *mode) reportProgress(job domain.JobInfo, free uint64) {
	read := m.readBytes.Load()
	if b := m.Snapshot(); b.ProcessedBytes == read && b.ScratchUsedBytes == job.TempBytes && b.ScratchFreeBytes == free {
		return
	}
	m.UpdateState(func(b *pb.Backup) {
		b.ProcessedBytes, b.ScratchUsedBytes, b.ScratchFreeBytes = read, job.TempBytes, free
	})
}

// Inspect implements backupjob.Mode.
func (m *mode) Inspect(begun bool) func(error) *backupjob.Failure {
	// If the free space is unknown, the failure is not blamed on the scratch space.
	free := m.scratch.lastFree()
	isFull := begun && free != nil && *free < fullBelow
	used := m.Snapshot().ScratchUsedBytes
	return func(err error) *backupjob.Failure {
		switch {
		case errors.Is(err, errclass.Exhausted), errclass.IsFull(err), isFull:
			return fullFailure(used, ptr.Deref(free, 0))
		case errors.Is(err, target.ErrInvalid):
			return &backupjob.Failure{Kind: pb.Backup_TARGET_INVALID, Message: err.Error()}
		}
		return nil
	}
}

// Discard implements backupjob.Mode.
func (m *mode) Discard() error {
	(*Job)(m).closeVolumes()
	return errors.Join(m.removeSocket(), m.scratch.release(m.req.Directory))
}
