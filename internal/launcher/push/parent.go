package push

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	"github.com/varvebackup/varve/internal/launcher/backupjob"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/launcher/target"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/manifest"
)

// checkParent makes each incremental disk full whose chain on the target is not whole. A target that cannot be read
// fails the backup: a read error says nothing about what is there, and the parent may be back at the next attempt.
func (j *job) checkParent() error {
	broken, err := j.brokenChains()
	if err != nil {
		return err
	}
	for _, v := range j.req.Volumes {
		problem := broken[v.Volume]
		if problem == nil {
			continue
		}
		v.Incremental, v.FullReason = false, string(parentReason(problem))
		j.cfg.Log.Warn("the disk's backup is full", "backup", j.req.Name, "uid", j.req.Uid, "volume", v.Volume, "reason", v.FullReason, "error", problem)
	}
	j.UpdateState(func(b *pb.Backup) {
		for i, v := range j.req.Volumes {
			b.Volumes[i].Incremental = v.Incremental
			if broken[v.Volume] != nil {
				b.Volumes[i].FullReason = v.FullReason
			}
		}
	})
	return nil
}

func parentReason(problem error) backupv1.FullReason {
	if errors.Is(problem, target.ErrParentMissing) {
		return backupv1.FullParentMissing
	}
	return backupv1.FullParentChanged
}

func (j *job) brokenChains() (map[string]error, error) {
	wanted := backupjob.IncrementalVolumes(j.req)
	if len(wanted) == 0 {
		return nil, nil
	}
	broken, err := j.progress.volume.BrokenChains(target.Parent{Directory: j.req.BaseDirectory, ManifestSHA256: j.req.BaseManifestSha256}, wanted)
	if err != nil {
		return nil, &backupjob.Failure{Kind: pb.Backup_TARGET_INVALID, Message: fmt.Sprintf(
			"Varve cannot tell whether the target has the base of this backup (%v): fix the target, or set forceFullBackup", err)}
	}
	return broken, nil
}

// linkToParent sets the backing files of the incremental files and returns the manifest's entry for the parent. The
// parent must still be there: somebody may have removed it while data was copied.
func (j *job) linkToParent(ctx context.Context) (*manifest.Parent, error) {
	wanted := backupjob.IncrementalVolumes(j.req)
	if len(wanted) == 0 {
		return nil, nil
	}
	broken, err := j.brokenChains()
	if err != nil {
		return nil, err
	}
	if names := slices.Sorted(maps.Keys(broken)); len(names) > 0 {
		return nil, &backupjob.Failure{Kind: pb.Backup_TARGET_INVALID, Message: fmt.Sprintf(
			"the base of volume %s disappeared from the target while the backup was being written: %v", names[0], broken[names[0]])}
	}
	directory, err := target.RelativeTo(j.req.Directory, j.req.BaseDirectory)
	if err != nil {
		return nil, fmt.Errorf("name the parent's directory: %w", err)
	}
	for _, name := range wanted {
		if err := j.cfg.Images.SetBacking(ctx, j.targetPath(name), layout.BackupFile(directory, name)); err != nil {
			return nil, causeOr(ctx, err)
		}
	}
	return &manifest.Parent{
		Checkpoint: j.req.BaseCheckpoint, BackupUID: j.req.BaseBackupUid, Directory: directory, ManifestSHA256: j.req.BaseManifestSha256,
	}, nil
}
