package push

import (
	"context"
	"fmt"

	"github.com/varvebackup/varve/internal/domain"
	"github.com/varvebackup/varve/internal/launcher/target"
)

// Prepare implements backupjob.Mode.
func (j *job) Prepare(ctx context.Context) (domain.BeginFunc, error) {
	volume, err := j.cfg.OpenTarget(j.req.TargetVolume)
	if err != nil {
		return nil, err
	}
	j.progress.volume = volume
	if err := j.checkParent(); err != nil {
		return nil, err
	}
	need, err := j.estimateBytes(ctx)
	if err != nil {
		return nil, err
	}
	j.progress.sealBytes = need
	// Begin removes what an earlier attempt left, so check the free space after it.
	j.progress.partial = true
	if err := volume.Begin(j.req.Directory, j.req.Uid); err != nil {
		return nil, err
	}
	free, err := volume.FreeBytes()
	if err != nil {
		return nil, err
	}
	if err := checkSpace(need, free); err != nil {
		return nil, err
	}
	for _, v := range j.req.Volumes {
		if err := j.cfg.Images.CreateTarget(ctx, j.targetPath(v.Volume), j.cfg.Disks[v.Volume].VirtualBytes); err != nil {
			return nil, fmt.Errorf("volume %s: %w", v.Volume, err)
		}
	}
	return j.cfg.Guest.PrepareBackup(ctx, j.backupPlan())
}

func (j *job) targetPath(volume string) string {
	return j.progress.volume.Path(target.PartialFile(j.req.Directory, volume))
}

func (j *job) backupPlan() domain.Backup {
	b := domain.Backup{Checkpoint: j.req.Checkpoint}
	for _, v := range j.req.Volumes {
		disk := domain.BackupDisk{Volume: v.Volume, Target: j.targetPath(v.Volume)}
		if v.Incremental {
			disk.Incremental = j.req.BaseCheckpoint
		}
		b.Disks = append(b.Disks, disk)
	}
	return b
}
