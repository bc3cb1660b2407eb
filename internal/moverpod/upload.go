package moverpod

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync/atomic"
	"time"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/disk"
	"github.com/varvebackup/varve/internal/mover"
	"github.com/varvebackup/varve/internal/repository"
)

// upload makes a restore point of the volume.
func (r *run) upload(ctx context.Context, repo *repository.Repository) (datamove.Report, error) {
	id, err := datamove.PointID(r.Job.UID)
	if err != nil {
		return datamove.Report{}, lasting(err, "")
	}
	report, err := r.uploadSource(ctx, repo, id)
	if err == nil {
		report.Repository = repo.ID()
	}
	return report, err
}

// uploadSource makes a restore point of what the job names.
func (r *run) uploadSource(ctx context.Context, repo *repository.Repository, id string) (datamove.Report, error) {
	switch {
	case r.Job.Tunnel != nil:
		return r.uploadMachineDisk(ctx, repo, id)
	case r.Job.Endpoint != nil:
		return r.uploadEndpoint(ctx, repo, id)
	}
	path, err := r.sourceDisk()
	switch {
	case err != nil:
		return datamove.Report{}, err
	case path == "":
		return r.uploadFiles(ctx, repo, id)
	case r.Job.Snapshot != nil:
		return r.uploadSnapshot(ctx, repo, id, path)
	}
	return r.uploadDisk(ctx, repo, id, path)
}

// history returns the history of the volume.
func (r *run) history(repo *repository.Repository) repository.Source {
	return repo.Source(datamove.HistoryHost, datamove.HistoryUser, mover.HistoryPath(r.Job.SourceNamespace+"/"+r.Job.SourceClaim))
}

// labels returns the labels of the restore point.
func (r *run) labels() map[string]string {
	labels := map[string]string{datamove.LabelUploadName: r.Job.Name, datamove.LabelUploadNamespace: r.Job.Namespace}
	maps.Copy(labels, r.Job.Labels)
	return labels
}

// uploadDisk makes a restore point of the disk at path. The disk is raw, whatever its first bytes say: a guest writes them.
func (r *run) uploadDisk(ctx context.Context, repo *repository.Repository, id, path string) (datamove.Report, error) {
	r.Log.Info("storing a disk", "path", path, "restorePoint", id)
	source := mover.Source{Name: datamove.DiskName, Location: path, Options: disk.SourceOptions{Format: disk.Raw}, Identity: string(r.Job.SourceUID)}
	if r.Job.DiskBytes > 0 {
		source.Open = func(ctx context.Context) (disk.Source, error) {
			return openFirstBytes(ctx, path, source.Options, r.Job.DiskBytes)
		}
		source.Check = r.checkImage
	}
	return r.storeDisk(ctx, repo, id, source, "", judgeUpload)
}

// storeDisk makes a restore point of a source. parent is the restore point that its changes are counted from; "": the history's latest.
func (r *run) storeDisk(ctx context.Context, repo *repository.Repository, id string, source mover.Source, parent string, judge func(error) error) (datamove.Report, error) {
	var stored atomic.Int64
	plans := 0
	definition, err := r.readDefinition()
	if err != nil {
		return datamove.Report{}, err
	}
	blockBytes, err := r.chooseBlockSize()
	if err != nil {
		return datamove.Report{}, err
	}
	point, err := mover.Backup(ctx, repo, mover.BackupRequest{
		ID: id, History: r.history(repo), Group: r.Job.Labels[datamove.LabelGroup], Labels: r.labels(), Workers: r.Job.Parallel,
		Definition:    definition,
		Sources:       []mover.Source{source},
		Parent:        parent,
		BlockBytesFor: blockBytes,
		FlushEvery:    r.limits.flush,
		CancelGrace:   r.workGrace(),
		Warn:          r.warn,
		Progress: func(p mover.Progress) {
			if p.Backup == nil {
				return
			}
			stored.Store(p.Backup.UploadedBytes)
			plans = r.noteBackup(p.Backup, plans)
		},
	})
	if err != nil {
		return datamove.Report{}, judge(err)
	}
	d, err := point.Disk(datamove.DiskName)
	if err != nil {
		return datamove.Report{}, lasting(err, "another version of Varve has made it")
	}
	r.progress.set(d.Bytes, d.Bytes)
	r.Log.Info("stored", "restorePoint", id, "bytes", d.Bytes, "changed", d.Stats.ChangedBytes, "read", d.Stats.ReadBytes, "why all was read", d.FullReason)
	return datamove.Report{
		SnapshotID: datamove.SnapshotID{Form: datamove.Disk, Point: id, Namespace: r.Job.SourceNamespace}.String(),
		TotalBytes: d.Bytes, ReadBytes: d.Stats.ReadBytes, IncrementalBytes: d.Stats.ChangedBytes, StoredBytes: stored.Load(), FullReason: reportedFullReason(d.FullReason),
	}, nil
}

// noteBackup notes how far a backup is, whose last report had so many plans, and returns how many it has now. What is zero or as in the
// parent is done as soon as that is known. Before the plan nothing is: if the parent cannot be used, all of the disk has to be read.
func (r *run) noteBackup(now *repository.Progress, plans int) int {
	done := now.TotalBytes - now.PlannedBytes + now.ReadBytes
	switch {
	case now.Plans == 0:
	case plans > 0 && now.Plans > plans:
		r.progress.setBack(now.TotalBytes, done)
	default:
		r.progress.set(now.TotalBytes, done)
	}
	return now.Plans
}

// chooseBlockSize returns how the block size of a disk without a history is chosen: the one that the object asks for,
// or by the disk's size.
func (r *run) chooseBlockSize() (func(diskBytes int64) int64, error) {
	asked := r.follower.askedBlockSize()
	if asked == "" {
		return repository.BlockBytesFor, nil
	}
	bytes, err := repository.ParseBlockSize(asked)
	if err != nil {
		return nil, lasting(fmt.Errorf("spec.dataMoverConfig: %s: %w", datamove.ConfigBlockSize, err),
			"make the DataUpload again with one of them, or without the key")
	}
	return func(int64) int64 { return bytes }, nil
}

// workGrace is how long the work itself may take to end when it is interrupted. The rest is for letting go of the repository. Work that is
// canceled has less, and is abandoned.
func (r *run) workGrace() time.Duration { return r.limits.interrupted * 3 / 4 }

// judgeUpload is judge for an upload: a volume that is not there does not appear.
func judgeUpload(err error) error {
	var opening *mover.OpenError
	if errors.As(err, &opening) {
		return judgeAbsence(err, "the pod was made without its volume")
	}
	return judge(err)
}

// reportedFullReason returns why an upload was not incremental if it could have been. A disk whose changes nobody tracks, or that is
// stored for the first time, could not.
func reportedFullReason(reason repository.FullReason) string {
	if reason == repository.FullNoChanges || reason == repository.FullNoParent {
		return ""
	}
	return string(reason)
}
