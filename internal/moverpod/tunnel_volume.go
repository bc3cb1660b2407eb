package moverpod

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/export/source"
	"github.com/varvebackup/varve/internal/export/tunnel"
	"github.com/varvebackup/varve/internal/extent"
)

// errMachineVolume: the launcher offers no such volume, or none that can be a disk.
var errMachineVolume = errclass.New(errclass.Invalid, "the launcher's volumes")

// machineDiskError is a failure of the launcher or of its disk, and not of the repository.
type machineDiskError struct{ err error }

func (e *machineDiskError) Error() string { return e.err.Error() }
func (e *machineDiskError) Unwrap() error { return e.err }

// tunnelVolume is a volume at the far end of a launcher's tunnel. It shows one point in time, so what a cut of the
// tunnel has interrupted goes on with the first byte that has not come. It may be used by several goroutines once it is
// open.
type tunnelVolume struct {
	export.Volume // nil until it is open

	far  *tunnel.Server
	name string
	// patience is how long nothing may come until the launcher is given up.
	patience time.Duration
	// readable bounds every wait for the launcher.
	readable readBound
	log      *slog.Logger
}

// openDisk waits for the launcher, and reads which regions the volume has. If whole is set, the launcher's changes
// count from an unknown point in time, and are ignored. The disk has no identity of its own: the restore point's source
// has one.
func (v *tunnelVolume) openDisk(ctx context.Context, whole bool) (*source.Disk, error) {
	err := v.persist(ctx, func(ctx context.Context) (bool, error) {
		if v.Volume != nil {
			return false, nil
		}
		volume, err := v.far.Open(ctx, v.name)
		if err == nil {
			v.Volume = volume
		}
		return err == nil, err
	})
	switch {
	case errors.Is(err, errclass.NotFound):
		return nil, errclass.Errorf(errMachineVolume, "%w: %w", errMachineVolume, err)
	case err != nil:
		return nil, err
	}
	return source.Open(ctx, v, source.Options{Whole: whole})
}

// Regions implements export.Volume.
func (v *tunnelVolume) Regions(ctx context.Context, e extent.Extent, report func(export.Region) bool) error {
	return v.persist(ctx, func(ctx context.Context) (bool, error) {
		began := e.Offset
		err := v.Volume.Regions(ctx, e, func(region export.Region) bool {
			e = extent.Extent{Offset: region.End(), Length: e.End() - region.End()}
			return report(region)
		})
		return e.Offset > began, err
	})
}

// Read implements export.Volume.
func (v *tunnelVolume) Read(ctx context.Context, e extent.Extent, scope export.Scope, sink func(export.Chunk) error) error {
	var refused error
	err := v.persist(ctx, func(ctx context.Context) (bool, error) {
		began := e.Offset
		err := v.Volume.Read(ctx, e, scope, func(c export.Chunk) error {
			if refused = sink(c); refused == nil {
				e = extent.Extent{Offset: c.End(), Length: e.End() - c.End()}
			}
			return refused
		})
		if refused != nil {
			err = nil // The launcher has nothing to do with it.
		}
		return e.Offset > began, err
	})
	if refused != nil {
		return refused
	}
	return err
}

// persist calls attempt until it succeeds, fails for good, or brings nothing for as long as the volume is patient, or
// until the backup ends. In between it waits for the launcher to be connected. attempt reports whether it brought
// anything.
func (v *tunnelVolume) persist(ctx context.Context, attempt func(context.Context) (progressed bool, err error)) error {
	ctx, stop := v.readable(ctx)
	defer stop()
	since := time.Now() //nolint:forbidigo // connections are waited for in real time
	for {
		progressed, err := attempt(ctx)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !errors.Is(err, errclass.Transient):
			return &machineDiskError{err}
		}
		now := time.Now() //nolint:forbidigo // as above
		if progressed {
			since = now
		}
		left := v.patience - now.Sub(since)
		if left > 0 {
			waiting, cancel := context.WithTimeout(ctx, left)
			waitErr := v.far.Wait(waiting)
			cancel()
			if waitErr == nil && pause(ctx, reconnectPause) {
				continue
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
		}
		v.log.Warn("the launcher is given up for now", "volume", v.name, "silent", v.patience, "error", err)
		return errclass.Errorf(errclass.Transient, "no launcher has offered volume %s for %s: %w", v.name, v.patience, err)
	}
}

// reconnectPause keeps a launcher that is connected, and cannot answer, from being asked all the time.
const reconnectPause = 20 * time.Millisecond
