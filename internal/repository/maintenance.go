package repository

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/maintenance"
)

// MaintenanceMode says how much maintenance to do.
type MaintenanceMode string

const (
	// QuickMaintenance keeps the indexes small, and removes blobs that were never finished. Once an hour is a good interval.
	QuickMaintenance MaintenanceMode = "quick"
	// FullMaintenance also frees what no restore point refers to, and extends object locks. Once a day is a good interval.
	FullMaintenance MaintenanceMode = "full"
)

// MaintenanceOptions are for Maintain.
type MaintenanceOptions struct {
	Mode MaintenanceMode
	// Exclusive says that nobody else is using the repository, so that what is unreferenced goes at once. Otherwise that takes
	// several runs over two days, because another machine may have begun to refer to it. Exclusive maintenance fails with
	// ErrConflict while a backup is running.
	Exclusive bool
	// Step is called with what is about to be done, StepCollect or StepCompact. It may be nil.
	Step func(MaintenanceStep)

	safety *maintenance.SafetyParameters // for tests
}

// Maintain does maintenance. Only one machine does so at a time; ErrConflict names the other. From then on the kopia CLI leaves
// maintenance to Varve.
func (r *Repository) Maintain(ctx context.Context, o MaintenanceOptions) (err error) {
	mode, ok := map[MaintenanceMode]maintenance.Mode{QuickMaintenance: maintenance.ModeQuick, FullMaintenance: maintenance.ModeFull}[o.Mode]
	if !ok {
		return fmt.Errorf("%w: maintenance mode %q: quick or full", ErrInvalid, o.Mode)
	}
	if err := r.writable(ctx); err != nil {
		return fmt.Errorf("maintenance: %w", err)
	}
	ctx, l, err := r.lockAs(ctx, maintenancePurpose, o.Exclusive)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.release()) }()
	safety := maintenance.SafetyFull
	if o.Exclusive {
		safety = maintenance.SafetyNone
	}
	if o.safety != nil {
		safety = *o.safety
	}
	wctx, w, err := r.rep.NewDirectWriter(ctx, repo.WriteSessionOptions{Purpose: "varve maintenance"})
	if err != nil {
		return fmt.Errorf("maintenance: %w", err)
	}
	// This comes early because the rest may need the space.
	err = removeUnfinished(wctx, r.rep.BlobReader(), o.unfinishedLife())
	if err == nil {
		d := &deletionStorage{Storage: w.BlobStorage()}
		err = r.maintain(wctx, maintenanceWriter{w, r.configFile, d}, mode, safety, &o)
		if failed := d.failure(); failed != nil {
			err = errors.Join(err, fmt.Errorf("delete what is not needed any more: %w", failed))
		}
	}
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = errors.Join(cause, err)
	}
	if err := errors.Join(err, w.Close(wctx)); err != nil {
		return fmt.Errorf("maintenance: %w", err)
	}
	return r.rep.Refresh(ctx)
}

// maintenanceWriter is the writer for kopia's maintenance. kopia excludes other processes of this machine with a file beside the
// configuration file. That must be the configuration file of the connection, and not the temporary one of a connection without a
// cache. kopia deletes through BlobStorage.
type maintenanceWriter struct {
	repo.DirectRepositoryWriter

	configFile string
	deletions  *deletionStorage
}

func (m maintenanceWriter) BlobStorage() blob.Storage { return m.deletions }

func (m maintenanceWriter) ConfigFilename() string { return m.configFile }

// maintenancePurpose is the purpose of maintenance's lock.
const maintenancePurpose = "maintenance"

// owner is the owner of the repository's maintenance in the sense of the kopia CLI. No user of a kopia CLI has this name: the CLI
// of such a user would do maintenance whenever it writes, without Varve's lock and without looking for lost restore points.
const owner = "varve"

// own makes Varve the owner of the repository's maintenance.
func own(ctx context.Context, w repo.DirectRepositoryWriter, p *maintenance.Params) error {
	blobs, err := w.FormatManager().BlobCfgBlob(ctx)
	if err != nil {
		return err
	}
	if p.Owner == owner && p.ExtendObjectLocks == blobs.IsRetentionEnabled() {
		return nil
	}
	p.Owner, p.ExtendObjectLocks = owner, blobs.IsRetentionEnabled()
	if err := maintenance.SetParams(ctx, w, p); err != nil {
		return err
	}
	reached("owner put")
	if err := w.Flush(ctx); err != nil {
		return err
	}
	reached("owner stored")
	return nil
}

// tidy does what comes before kopia's part. By then kopia has compared this machine's clock with the storage's.
func (r *Repository) tidy(ctx context.Context, w repo.DirectRepositoryWriter, p *maintenance.Params) error {
	if err := own(ctx, w, p); err != nil {
		return err
	}
	if err := dropStaleLeases(ctx, w); err != nil {
		return err
	}
	if err := errors.Join(keepFormat(ctx, w, r.password), r.keepRecords(ctx, w)); err != nil {
		return err
	}
	return mergeManifests(ctx, w)
}

// ignoreDeleted is the variable that makes kopia go on if it cannot read a content that nothing refers to any more. Without it, a
// damaged pack would end all maintenance, even after the restore points that used it were deleted.
const ignoreDeleted = "KOPIA_IGNORE_MAINTENANCE_REWRITE_ERROR"

func (r *Repository) maintain(ctx context.Context, w repo.DirectRepositoryWriter, mode maintenance.Mode, safety maintenance.SafetyParameters, o *MaintenanceOptions) error {
	if err := os.Setenv(ignoreDeleted, "1"); err != nil {
		return err
	}
	ran := false
	err := maintenance.RunExclusive(ctx, w, mode, true, func(ctx context.Context, p maintenance.RunParameters) error {
		ran = true
		if o.Exclusive {
			if err := noSession(ctx, w); err != nil {
				return err
			}
		}
		if err := r.tidy(ctx, w, p.Params); err != nil {
			return err
		}
		if p.Mode == maintenance.ModeFull {
			o.tell(StepCollect)
			if err := collectGarbage(ctx, w, safety, p.MaintenanceStartTime); err != nil {
				return err
			}
			if err := extendLocks(ctx, w); err != nil {
				return err
			}
			reached("garbage marked")
		}
		o.tell(StepCompact)
		return maintenance.Run(ctx, p, safety)
	})
	reached("maintained")
	if err == nil && !ran {
		return fmt.Errorf("%w: another process of this machine is at it", ErrConflict)
	}
	return err
}
