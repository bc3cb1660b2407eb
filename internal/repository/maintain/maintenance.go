package maintain

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/content/indexblob"
	"github.com/kopia/kopia/repo/maintenance"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/internal/repository/storage"
)

// Mode says how much maintenance to do.
type Mode string

const (
	// Quick keeps the indexes small, and removes blobs that were never finished. Once an hour is a good interval.
	Quick Mode = "quick"
	// Full also frees what no restore point refers to, and extends object locks. Once a day is a good interval.
	Full Mode = "full"
)

// Options are for Run.
type Options struct {
	Mode Mode
	// Exclusive says that nobody else is using the repository, so that what is unreferenced goes at once. Otherwise that takes
	// several runs over two days, because another machine may have begun to refer to it. Exclusive maintenance fails with
	// errclass.Conflict while a backup is running.
	Exclusive bool
	// Step is called with what is about to be done, StepCollect or StepCompact. It may be nil.
	Step func(Step)
	// Warn is called with what maintenance leaves as it is although it is damaged, and what to do. It may be nil.
	Warn func(error)

	// Safety has other margins than kopia's, for tests; nil otherwise.
	Safety *maintenance.SafetyParameters
}

// Step is a part of maintenance.
type Step string

const (
	// StepCollect finds what no restore point refers to.
	StepCollect Step = "collect"
	// StepCompact merges indexes, rewrites packs that are mostly empty and deletes what is due.
	StepCompact Step = "compact"
)

func (o Options) reportStep(s Step) {
	if o.Step != nil {
		o.Step(s)
	}
}

func (o Options) reportWarning(err error) {
	if o.Warn != nil {
		o.Warn(err)
	}
}

// Run does maintenance. Only one machine does so at a time; errclass.Conflict names the other. From then on the kopia CLI leaves
// maintenance to Varve. In a full directory it gives up the reserve, and makes it again when there is room.
func Run(ctx context.Context, c *engine.Connection, o Options) error {
	blobs := c.Kopia.BlobReader()
	if storage.NeedsReserve(blobs) {
		storage.GiveUpReserve(blobs)
	}
	err := runOnce(ctx, c, o)
	full := (*fullError)(nil)
	if errors.As(err, &full) && full.roomMade || errors.Is(err, storage.ErrFull) && storage.GiveUpReserve(blobs) {
		err = runOnce(ctx, c, o)
	}
	if err == nil {
		storage.KeepReserve(blobs)
	}
	return err
}

// fullError is the error of a run that found no space. roomMade says whether there is some now.
type fullError struct {
	error
	roomMade bool
}

func (e *fullError) Unwrap() error { return e.error }

// runOnce is Run with the room that there is.
func runOnce(ctx context.Context, c *engine.Connection, o Options) (err error) {
	mode, ok := map[Mode]maintenance.Mode{Quick: maintenance.ModeQuick, Full: maintenance.ModeFull}[o.Mode]
	if !ok {
		return fmt.Errorf("%w: maintenance mode %q: quick or full", errclass.Invalid, o.Mode)
	}
	if err := c.CheckWritable(ctx); err != nil {
		return fmt.Errorf("maintenance: %w", err)
	}
	ctx, l, err := c.LockAs(ctx, engine.MaintenancePurpose, o.Exclusive)
	if err != nil {
		return err
	}
	defer func() {
		if errors.Is(err, storage.ErrFull) { // Releasing the lock needs room, too.
			err = &fullError{err, storage.GiveUpReserve(c.Kopia.BlobReader())}
		}
		err = errors.Join(err, l.Release())
	}()
	safety := maintenance.SafetyFull
	if o.Exclusive {
		safety = maintenance.SafetyNone
	}
	if o.Safety != nil {
		safety = *o.Safety
	}
	wctx, w, err := c.Kopia.NewDirectWriter(ctx, repo.WriteSessionOptions{Purpose: "varve maintenance"})
	if err != nil {
		return fmt.Errorf("maintenance: %w", err)
	}
	// This comes early because the rest may need the space.
	err = storage.RemoveUnfinished(wctx, c.Kopia.BlobReader(), o.lifeOfUnfinished())
	if err == nil {
		d := storage.NewQuietDeletions(w.BlobStorage())
		err = withLocalLock(c.Access, func(configFile string) error {
			return runExclusive(wctx, c, maintenanceWriter{w, configFile, d}, mode, safety, &o)
		})
		if failed := d.Failure(); failed != nil {
			err = errors.Join(err, fmt.Errorf("delete what is not needed any more: %w", failed))
		}
	}
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = errors.Join(cause, err)
	}
	if err := errors.Join(err, w.Close(wctx)); err != nil {
		return fmt.Errorf("maintenance: %w", err)
	}
	return c.Kopia.Refresh(ctx)
}

// ExclusiveUnfinishedLife is the age from which an unfinished blob counts as abandoned, if only this process uses the repository.
const ExclusiveUnfinishedLife = time.Hour

// UnfinishedLife is how long an unfinished blob may be under way. A blob is written at once, from memory, so its last change is
// seconds before its end, unless its machine sleeps. kopia also deletes packs that no index names yet, if their writer has been
// silent for longer than this: so what that writer was writing is of no use. If the writer comes back, its write fails because
// the file is missing, and nothing is wrong.
var UnfinishedLife = maintenance.SafetyFull.SessionExpirationAge

func (o Options) lifeOfUnfinished() time.Duration {
	if o.Exclusive {
		return ExclusiveUnfinishedLife
	}
	return UnfinishedLife
}

// withLocalLock calls f with the name of the configuration file beside which kopia makes its lock file, which excludes other
// processes of this machine. If the connection has no such file, the lock file excludes nobody, and Varve's own lock does that alone.
func withLocalLock(a *engine.Access, f func(configFile string) error) (err error) {
	if a.ConfigFile != "" {
		return f(a.ConfigFile)
	}
	dir, err := os.MkdirTemp("", "varve-maintenance-")
	if err != nil {
		return fmt.Errorf("directory for a lock file: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	return f(filepath.Join(dir, "connection"))
}

// maintenanceWriter is the writer for kopia's maintenance. kopia makes its lock file beside configFile, and deletes through
// BlobStorage.
type maintenanceWriter struct {
	repo.DirectRepositoryWriter

	configFile string
	deletions  *storage.QuietDeletions
}

func (m maintenanceWriter) BlobStorage() blob.Storage { return m.deletions }

func (m maintenanceWriter) ConfigFilename() string { return m.configFile }

// Owner is the owner of the repository's maintenance in the sense of the kopia CLI. No user of a kopia CLI has this name: the CLI
// of such a user would do maintenance whenever it writes, without Varve's lock and without looking for lost restore points.
const Owner = "varve"

// takeOwnership makes Varve the owner of the repository's maintenance.
func takeOwnership(ctx context.Context, w repo.DirectRepositoryWriter, p *maintenance.Params) error {
	blobs, err := w.FormatManager().BlobCfgBlob(ctx)
	if err != nil {
		return err
	}
	if p.Owner == Owner && p.ExtendObjectLocks == blobs.IsRetentionEnabled() {
		return nil
	}
	p.Owner, p.ExtendObjectLocks = Owner, blobs.IsRetentionEnabled()
	if err := maintenance.SetParams(ctx, w, p); err != nil {
		return err
	}
	engine.Reached("owner put")
	if err := w.Flush(ctx); err != nil {
		return err
	}
	engine.Reached("owner stored")
	return nil
}

// runOwnTasks does what comes before kopia's part. By then kopia has compared this machine's clock with the storage's.
func runOwnTasks(ctx context.Context, c *engine.Connection, w repo.DirectRepositoryWriter, p *maintenance.Params, o *Options) error {
	if err := takeOwnership(ctx, w, p); err != nil {
		return err
	}
	if err := DropStaleLeases(ctx, w); err != nil {
		return err
	}
	if err := errors.Join(updateFormatCopy(ctx, w, c.Access.Password, o.reportWarning),
		completeRecords(ctx, c, w)); err != nil {
		return err
	}
	return mergeManifests(ctx, w)
}

func runExclusive(ctx context.Context, c *engine.Connection, w repo.DirectRepositoryWriter, mode maintenance.Mode, safety maintenance.SafetyParameters, o *Options) error {
	ran := false
	err := maintenance.RunExclusive(ctx, w, mode, true, func(ctx context.Context, p maintenance.RunParameters) error {
		ran = true
		if o.Exclusive {
			if err := checkNoBackup(ctx, w); err != nil {
				return err
			}
		}
		if err := runOwnTasks(ctx, c, w, p.Params, o); err != nil {
			return err
		}
		if p.Mode == maintenance.ModeFull {
			o.reportStep(StepCollect)
			if err := CollectGarbage(ctx, w, safety, p.MaintenanceStartTime); err != nil {
				return err
			}
			if err := errors.Join(extendObjectLocks(ctx, w), dropDamageRecords(ctx, w)); err != nil {
				return err
			}
			engine.Reached("garbage marked")
			if o.Exclusive && storage.IsShort(c.Kopia.BlobReader()) {
				if err := freeFirst(ctx, w, safety, p.MaintenanceStartTime); err != nil {
					return err
				}
			}
		}
		o.reportStep(StepCompact)
		return maintenance.Run(ctx, p, safety)
	})
	engine.Reached("maintained")
	if err == nil && !ran {
		return fmt.Errorf("%w: another process of this machine is at it", errclass.Conflict)
	}
	return err
}

// freeFirst deletes the packs of which nothing is in use. kopia does that after it has written the rest of other packs again, for which
// there may be no room. Nobody else is using the repository.
func freeFirst(ctx context.Context, w repo.DirectRepositoryWriter, safety maintenance.SafetyParameters, started time.Time) error {
	_, err := w.ContentManager().CompactIndexes(ctx, indexblob.CompactOptions{
		AllIndexes: true, DropDeletedBefore: w.Time(), DisableEventualConsistencySafety: safety.DisableEventualConsistencySafety,
	})
	if err == nil {
		_, err = maintenance.DeleteUnreferencedPacks(ctx, w, maintenance.DeleteUnreferencedPacksOptions{NotAfterTime: started}, safety)
	}
	if err != nil {
		return fmt.Errorf("make room: %w", err)
	}
	return nil
}
