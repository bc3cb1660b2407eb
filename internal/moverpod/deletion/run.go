package deletion

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository"
	"github.com/varvebackup/varve/internal/repository/storage"
	"github.com/varvebackup/varve/internal/repositoryaccess"
)

// cacheBytes bounds what a run keeps on its node.
const cacheBytes = 256 << 20

// maxMessageBytes is the longest termination message that a kubelet takes.
const maxMessageBytes = 4096

// Options are what Run needs. None has a default.
type Options struct {
	// Job is the value of datamove.DeletionVariable.
	Job string
	// AccessFile has the datamove.Access.
	AccessFile string
	// CacheDirectory is for a cache; "": none.
	CacheDirectory string
	// MessageFile gets the report, or the reason of a failure, if it exists.
	MessageFile string
	// Now tells the time, and Log is told what is done.
	Now func() time.Time
	Log *slog.Logger
}

// Run deletes the restore points of a job and leaves a datamove.DeletionReport. An error means that some may be left; the job can be
// repeated. What it returns, logs and leaves holds no secret.
func Run(ctx context.Context, o Options) error {
	job, err := datamove.DecodeDeletionJob(o.Job)
	if err != nil {
		return o.leave(err)
	}
	text, err := os.ReadFile(o.AccessFile)
	if err != nil {
		return o.leave(fmt.Errorf("read the access to the repository: %w", err))
	}
	a, err := datamove.DecodeAccess(text)
	if err != nil {
		return o.leave(err)
	}
	report, err := o.delete(ctx, a, job)
	if err != nil {
		words := repositoryaccess.Words{Place: repositoryaccess.Locate(a).String(), Keys: "the location's Secret", Password: "the repository's Secret"}
		return o.leave(errors.New(repositoryaccess.Explain(err, a, words)))
	}
	return o.write(report.Encode())
}

func (o Options) delete(ctx context.Context, a datamove.Access, job datamove.DeletionJob) (report datamove.DeletionReport, err error) {
	switch {
	case a.ReadOnly:
		return report, errclass.Errorf(errclass.Denied, "the location is read-only")
	case a.UniqueID != job.Repository:
		return report, storage.ErrReplaced
	}
	connect := repository.ConnectOptions{Host: "varve-deletion", User: "varve", CacheLimitBytes: datamove.JobCacheBytes}
	if o.CacheDirectory != "" {
		connect.CacheDirectory, connect.CacheBytes = filepath.Join(o.CacheDirectory, "cache"), cacheBytes
	}
	store := repositoryaccess.NewStore(o.Now, nil)
	r, err := store.Open(ctx, a, connect)
	if err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, r.Close(context.WithoutCancel(ctx))) }()
	backups, err := store.Backups(ctx, a)
	if err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, backups.Close(context.WithoutCancel(ctx))) }()
	return o.deletePoints(ctx, r, backups, job)
}

// deletePoints deletes what nothing keeps.
func (o Options) deletePoints(ctx context.Context, r *repository.Repository, backups *repositoryaccess.Backups, job datamove.DeletionJob) (datamove.DeletionReport, error) {
	report := datamove.DeletionReport{Kept: map[string]datamove.Kept{}}
	guarded, err := newGuard(ctx, r, o.Now())
	if err != nil {
		return report, err
	}
	all, err := r.List(ctx, nil)
	if err != nil { // What cannot be read may be one of them.
		return report, err
	}
	found := make(map[string]*repository.RestorePoint, len(all))
	for _, p := range all {
		found[p.ID] = p
	}
	var ids []string
	for _, wanted := range job.Points {
		p := found[wanted.ID]
		if p == nil {
			ids = append(ids, wanted.ID) // nobody knows it, or its record alone is left
			continue
		}
		kept, err := keepsPoint(ctx, guarded, backups, p, wanted)
		if err != nil {
			return report, err
		}
		if kept == nil {
			ids = append(ids, p.ID)
			continue
		}
		o.Log.Info("a restore point is kept", "restorePoint", p.ID, "why", kept.Why)
		report.Kept[p.ID] = *kept
	}
	pinned, err := remove(ctx, r, ids)
	if err != nil {
		return report, err
	}
	for _, id := range pinned {
		report.Kept[id] = datamove.Kept{Why: datamove.KeptPinned}
	}
	o.Log.Info("restore points are deleted", "asked", len(job.Points), "kept", len(report.Kept))
	return report, nil
}

// keepsPoint returns why a restore point stays; nil if it is to go. What it belongs to is what it says itself: DataUploads are written by
// many.
func keepsPoint(ctx context.Context, g guard, backups *repositoryaccess.Backups, p *repository.RestorePoint, wanted datamove.PointToDelete) (*datamove.Kept, error) {
	backup, uid := p.Labels[datamove.LabelBackupName], p.Labels[datamove.LabelBackupUID]
	if wanted.Backup != "" && (wanted.Backup != backup || wanted.BackupUID != "" && wanted.BackupUID != uid) {
		return &datamove.Kept{Why: datamove.KeptForeign}, nil
	}
	if kept := g.keeps(p); kept != nil {
		return kept, nil
	}
	if backup == "" {
		return nil, nil
	}
	there, err := hasBackup(ctx, backups, backup, uid)
	if err != nil || !there {
		return nil, err
	}
	return &datamove.Kept{Why: datamove.KeptBackupThere}, nil
}

// hasBackup says whether anything of a backup is in the location. What is there of another backup of its name, which
// the UID tells, is nothing of it.
func hasBackup(ctx context.Context, backups *repositoryaccess.Backups, label, uid string) (bool, error) {
	there, err := backups.Has(ctx, label)
	if err != nil || !there {
		return false, err
	}
	other, err := backups.HasOther(ctx, label, uid)
	return !other, err
}

// leave writes the reason of a failure where the kubelet looks for it.
func (o Options) leave(err error) error {
	message := err.Error()
	return errors.Join(err, o.write(message[:min(len(message), maxMessageBytes)]))
}

func (o Options) write(message string) error {
	f, err := os.OpenFile(o.MessageFile, os.O_WRONLY|os.O_TRUNC, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil // nobody asked for it
	}
	if err != nil {
		return err
	}
	_, err = f.WriteString(message)
	return errors.Join(err, f.Close())
}
