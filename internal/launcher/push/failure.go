package push

import (
	"errors"
	"fmt"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/launcher/backupjob"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/launcher/target"
)

// targetFullBelow is the free space in bytes below which a failed job is blamed on the target: a qcow2 file grows by more at once.
const targetFullBelow = 1 << 20

// Inspect implements backupjob.Mode.
func (j *job) Inspect(begun bool) func(error) *backupjob.Failure {
	// If the free space is unknown, the failure is not blamed on the target.
	free, isFull := uint64(0), false
	if volume := j.progress.volume; volume != nil {
		if bytes, err := volume.FreeBytesSoon(); err == nil {
			free, isFull = bytes, begun && bytes < targetFullBelow
		}
	}
	return func(err error) *backupjob.Failure {
		switch {
		case errors.Is(err, errclass.Exhausted), errclass.IsFull(err), isFull:
			return &backupjob.Failure{Kind: pb.Backup_TARGET_FULL, Message: fmt.Sprintf(
				"the target ran out of space while the backup was being written (%s free): delete old backups from it or use a larger claim", formatBytes(free))}
		case errors.Is(err, target.ErrInvalid):
			return &backupjob.Failure{Kind: pb.Backup_TARGET_INVALID, Message: err.Error()}
		}
		return nil
	}
}

// Discard implements backupjob.Mode. The volume is open, so if it was unmounted meanwhile, this still works or does nothing.
func (j *job) Discard() error {
	if j.progress.volume == nil {
		return nil
	}
	directory := ""
	if j.progress.partial {
		directory = j.req.Directory
	}
	return j.progress.volume.Release(directory)
}

func stalledFailure() *backupjob.Failure {
	return &backupjob.Failure{Kind: pb.Backup_TARGET_STALLED, Message: fmt.Sprintf("nothing was copied for %s, while the guest's writes may wait for the target", stalledAfter)}
}
