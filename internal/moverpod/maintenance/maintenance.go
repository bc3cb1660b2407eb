// Package maintenance is the program of the Jobs that maintain repositories.
//
// Its pod has the access to one repository, and no account: it says how it ended by its exit code and its termination message. Two of
// them exclude each other by the repository's own lock, also across clusters. A run that is killed leaves nothing behind but that lock,
// which ends by itself.
package maintenance

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/moverpod/deletion"
	"github.com/varvebackup/varve/internal/repository"
	"github.com/varvebackup/varve/internal/repositoryaccess"
)

// cacheBytes bounds what a run keeps on its node.
const cacheBytes = 1 << 30

// maxMessageBytes is the longest termination message that a kubelet takes.
const maxMessageBytes = 4096

// Options are what Run needs. None has a default.
type Options struct {
	// AccessFile has the datamove.Access.
	AccessFile string
	// CacheDirectory is for a cache; "": none.
	CacheDirectory string
	// MessageFile gets the reason of a failure or a datamove.MaintenanceReport, if it exists.
	MessageFile string
	// CollectMissing is the value of datamove.CollectMissingVariable; "" if there is none.
	CollectMissing string
	// Now tells the time, and Log is told what is done.
	Now func() time.Time
	Log *slog.Logger
}

// Run does the maintenance that is due. What it returns and logs holds no secret.
func Run(ctx context.Context, o Options) error {
	text, err := os.ReadFile(o.AccessFile)
	if err != nil {
		return o.leave(fmt.Errorf("read the access to the repository: %w", err))
	}
	a, err := datamove.DecodeAccess(text)
	if err != nil {
		return o.leave(err)
	}
	report, err := o.maintain(ctx, a)
	if err != nil {
		return o.leave(errors.New(explain(err, a)))
	}
	return o.write(string(report.Encode()))
}

func explain(err error, a datamove.Access) string {
	words := repositoryaccess.Words{Place: repositoryaccess.Locate(a).String(), Keys: "the location's Secret", Password: "the repository's Secret"}
	return repositoryaccess.Explain(err, a, words)
}

// maintain does what is due.
func (o Options) maintain(ctx context.Context, a datamove.Access) (report datamove.MaintenanceReport, err error) {
	connect := repository.ConnectOptions{
		Host: "varve-maintenance", User: "varve", CacheLimitBytes: datamove.JobCacheBytes,
	}
	if o.CacheDirectory != "" {
		connect.CacheDirectory, connect.CacheBytes = filepath.Join(o.CacheDirectory, "cache"), cacheBytes
	}
	if a.ReadOnly {
		o.Log.Info("the location is read-only: nothing to do")
		return report, nil
	}
	started := o.Now()
	store := repositoryaccess.NewStore(o.Now, nil)
	r, err := store.Open(ctx, a, connect)
	if err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, r.Close(context.WithoutCancel(ctx))) }()
	mode, err := r.DueMaintenance(ctx)
	if err != nil {
		return report, err
	}
	o.Log.Info("maintenance begins", "repository", r.ID(), "mode", mode)
	step := func(s repository.MaintenanceStep) { o.Log.Info("maintenance goes on", "step", s) }
	var remarks []string
	warn := func(warning error) {
		o.Log.Warn(warning.Error())
		remarks = append(remarks, warning.Error())
	}
	if err := r.Maintain(ctx, repository.MaintenanceOptions{Mode: mode, Step: step, Warn: warn}); err != nil {
		return report, err
	}
	o.Log.Info("maintenance is done", "mode", mode, "seconds", int(o.Now().Sub(started).Seconds()))
	// After maintenance, because that refuses a machine whose clock is wrong.
	collected, err := o.collect(ctx, store, r, a)
	if err != nil {
		warn(errors.New("restore points of deleted backups were not collected: " + explain(err, a)))
	} else if summary := collected.Summary(); summary != "" {
		remarks = append(remarks, summary)
	}
	if report.Contents, _, err = r.Contents(ctx, 100, 0); err != nil {
		warn(fmt.Errorf("the next Job may get too little memory: count the contents of the index: %w", err))
	}
	report.Remark = strings.Join(remarks, "; ")
	return report, nil
}

// collect deletes the restore points whose Velero backup is gone from the location.
func (o Options) collect(ctx context.Context, store *repositoryaccess.Store, r *repository.Repository, a datamove.Access) (done deletion.Collected, err error) {
	backups, err := store.Backups(ctx, a)
	if errors.Is(err, errclass.Invalid) {
		return done, nil // a repository that is in no location has no backups of Velero's
	}
	if err != nil {
		return done, err
	}
	defer func() { err = errors.Join(err, backups.Close(context.WithoutCancel(ctx))) }()
	blobs, err := repositoryaccess.Locate(a).Open(ctx, false)
	if err != nil {
		return done, err
	}
	defer func() { err = errors.Join(err, blobs.Close(context.WithoutCancel(ctx))) }()
	c := deletion.Collector{Repository: r, Backups: backups, Storage: blobs, Now: o.Now, Log: o.Log}
	if o.CollectMissing != "" {
		if c.Agreed, err = time.Parse(time.RFC3339, o.CollectMissing); err != nil {
			return done, fmt.Errorf("annotation %s of the BackupRepository: a time such as %s: %w",
				datamove.AnnotationCollectMissing, o.Now().UTC().Format(time.RFC3339), err)
		}
	}
	return c.Collect(ctx)
}

// leave writes the reason of a failure where the kubelet looks for it.
func (o Options) leave(err error) error { return errors.Join(err, o.write(err.Error())) }

func (o Options) write(message string) error {
	f, err := os.OpenFile(o.MessageFile, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return nil //nolint:nilerr // the kubelet takes the end of the log
	}
	_, err = f.WriteString(message[:min(len(message), maxMessageBytes)])
	return errors.Join(err, f.Close())
}
