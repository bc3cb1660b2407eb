package moverpod

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository"
)

// keepTimeout is the repository's KeepTimeout within a grace: the files that are being read take half as long on top of it.
func keepTimeout(grace time.Duration) time.Duration { return grace * 2 / 3 }

// uploadFiles makes a restore point of a tree of files, which may be empty.
func (r *run) uploadFiles(ctx context.Context, repo *repository.Repository, id string) (datamove.Report, error) {
	r.Log.Info("storing files", "directory", r.Files.Volume, "restorePoint", id)
	var stored atomic.Int64
	point, err := repo.BackupFiles(ctx, repository.FilesRequest{
		ID: id, Source: r.history(repo), Root: r.Files.Volume, Identity: string(r.Job.SourceUID), Labels: r.labels(), Parallel: r.Job.Parallel,
		FlushEvery: r.limits.flush, KeepTimeout: keepTimeout(r.workGrace()),
		Progress: func(p repository.FilesProgress) {
			stored.Store(p.UploadedBytes)
			r.noteFiles(p)
		},
	})
	if err != nil {
		return datamove.Report{}, judge(err)
	}
	f := point.Files
	if f == nil {
		return datamove.Report{}, lasting(errclass.Errorf(errclass.Invalid, "restore point %s has no files", id), "another version of Varve has made it")
	}
	r.progress.set(f.Bytes, f.Bytes)
	r.Log.Info("stored", "restorePoint", id, "files", f.Count, "bytes", f.Bytes, "filesRead", f.Stats.ReadFiles, "bytesRead", f.Stats.ReadBytes,
		"socketsLeftOut", f.Sockets, "why all was read", f.FullReason)
	return datamove.Report{
		SnapshotID: datamove.SnapshotID{Form: datamove.Files, Point: id, Namespace: r.Job.SourceNamespace}.String(),
		TotalBytes: f.Bytes, ReadBytes: f.Stats.ReadBytes, IncrementalBytes: f.Stats.ReadBytes, StoredBytes: stored.Load(), FullReason: reportedFullReason(f.FullReason),
	}, nil
}

// noteFiles takes in how far the work is. Until all files are counted, a part of an unknown whole says nothing.
func (r *run) noteFiles(p repository.FilesProgress) {
	if p.TotalKnown {
		r.progress.set(p.TotalBytes, p.DoneBytes)
	}
}

// downloadFiles writes a tree of files. It takes its own lease, and goes on where an earlier attempt has ended.
func (r *run) downloadFiles(ctx context.Context, repo *repository.Repository, point *repository.RestorePoint) (datamove.Report, error) {
	if point.Files == nil {
		return datamove.Report{}, lasting(fmt.Errorf("%w: restore point %s has no files", errclass.NotFound, point.ID), "it is no backup of files")
	}
	r.Log.Info("restoring files", "restorePoint", point.ID, "files", point.Files.Count, "bytes", point.Files.Bytes, "to", r.Files.Volume)
	err := repo.RestoreFiles(ctx, repository.FilesRestoreRequest{ID: point.ID, Directory: r.Files.Volume, Parallel: r.Job.Parallel, Progress: r.noteFiles})
	switch {
	case errors.Is(err, errclass.Conflict):
		return datamove.Report{}, lasting(err, "restore to a new claim")
	case err != nil:
		return datamove.Report{}, judge(err)
	}
	r.progress.set(point.Files.Bytes, point.Files.Bytes)
	r.Log.Info("restored: everything was verified, and the volume is synced", "files", point.Files.Count, "bytes", point.Files.Bytes)
	return datamove.Report{TotalBytes: point.Files.Bytes}, nil
}
