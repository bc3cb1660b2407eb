package moverpod

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/export/tunnel"
	"github.com/varvebackup/varve/internal/extent"
)

// granuleBytes is the unit of a tunnelDisk's Data and Changes. It bounds the number of extents.
const granuleBytes = 64 << 10

// errMachineVolume: the launcher offers no such volume, or none that can be a disk.
var errMachineVolume = errclass.New(errclass.Invalid, "the launcher's volumes")

// machineDiskError is a failure of the launcher or of its disk, and not of the repository.
type machineDiskError struct{ err error }

func (e *machineDiskError) Error() string { return e.err.Error() }
func (e *machineDiskError) Unwrap() error { return e.err }

// tunnelDisk is a volume at the far end of a launcher's tunnel, as a disk.Source. It shows one point in time, so a tunnel that was cut may go
// on where it was. It may be used by several goroutines once it is open.
type tunnelDisk struct {
	far  *tunnel.Server
	name string
	// whole: what the launcher says about changes is counted from a moment that nobody knows.
	whole bool
	// patience is how long nothing may come until the launcher is given up.
	patience time.Duration
	// readable bounds every wait for the launcher.
	readable readBound
	log      *slog.Logger

	volume export.Volume
	// maybeData may be nonzero; changed has changed since the base, or is nil.
	maybeData, changed *extent.Set
}

// open waits for the launcher, and reads which regions the volume has.
func (d *tunnelDisk) open(ctx context.Context) error {
	err := d.persist(ctx, func(ctx context.Context) (bool, error) {
		if d.volume != nil {
			return false, nil
		}
		volume, err := d.far.Open(ctx, d.name)
		if err == nil {
			d.volume = volume
		}
		return err == nil, err
	})
	switch {
	case errors.Is(err, errclass.NotFound):
		return errclass.Errorf(errMachineVolume, "%w: %w", errMachineVolume, err)
	case err != nil:
		return err
	case d.volume.Info().Bytes <= 0:
		return errclass.Errorf(errMachineVolume, "%w: %s has no bytes", errMachineVolume, d.name)
	}
	return d.readMap(ctx)
}

// readMap reads the regions. What has not changed may hold anything: it is data, should the disk have to be read as a whole.
func (d *tunnelDisk) readMap(ctx context.Context) error {
	info := d.volume.Info()
	var data, changed []extent.Extent
	rest := extent.Extent{Length: info.Bytes}
	err := d.persist(ctx, func(ctx context.Context) (bool, error) {
		began := rest.Offset
		err := d.volume.Regions(ctx, rest, func(region export.Region) bool {
			if region.Kind != export.Zero {
				data = append(data, region.Extent)
			}
			if region.Kind != export.Clean {
				changed = append(changed, region.Extent)
			}
			rest = extent.Extent{Offset: region.End(), Length: info.Bytes - region.End()}
			return true
		})
		return rest.Offset > began, err
	})
	if err != nil {
		return fmt.Errorf("read the map of volume %s: %w", d.name, err)
	}
	if !rest.Empty() {
		return errclass.Errorf(errMachineVolume, "%w: the map of %s ends at %d of %d bytes", errMachineVolume, d.name, rest.Offset, info.Bytes)
	}
	set := extent.NewSet(data...).Widen(granuleBytes, info.Bytes)
	d.maybeData = &set
	if info.Incremental && !d.whole {
		set := extent.NewSet(changed...).Widen(granuleBytes, info.Bytes)
		d.changed = &set
	}
	return nil
}

// ReadAt fills p. After a cut it goes on with the first byte that has not come.
func (d *tunnelDisk) ReadAt(ctx context.Context, p []byte, offset int64) error {
	return d.persist(ctx, func(ctx context.Context) (bool, error) {
		filled := 0
		err := d.volume.Read(ctx, extent.Extent{Offset: offset, Length: int64(len(p))}, export.Everything, func(c export.Chunk) error {
			if c.Offset != offset+int64(filled) || c.Length > int64(len(p)-filled) {
				return errclass.Errorf(errMachineVolume, "%w: %s sends %v at %d", errMachineVolume, d.name, c.Extent, offset+int64(filled))
			}
			to := p[filled : filled+int(c.Length)]
			if c.Data == nil {
				clear(to)
			} else {
				copy(to, c.Data)
			}
			filled += len(to)
			return nil
		})
		if err == nil && filled < len(p) {
			return false, errclass.Errorf(errMachineVolume, "%w: %s ends at %d", errMachineVolume, d.name, offset+int64(filled))
		}
		p, offset = p[filled:], offset+int64(filled)
		return filled > 0, err
	})
}

// persist calls attempt until it succeeds, fails for good, or brings nothing for as long as the disk is patient, or until the backup ends. In
// between it waits for the launcher to be connected. attempt reports whether it brought anything.
func (d *tunnelDisk) persist(ctx context.Context, attempt func(context.Context) (progressed bool, err error)) error {
	ctx, stop := d.readable(ctx)
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
		left := d.patience - now.Sub(since)
		if left > 0 {
			waiting, cancel := context.WithTimeout(ctx, left)
			waitErr := d.far.Wait(waiting)
			cancel()
			if waitErr == nil && pause(ctx, reconnectPause) {
				continue
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
		}
		d.log.Warn("the launcher is given up for now", "volume", d.name, "silent", d.patience, "error", err)
		return errclass.Errorf(errclass.Transient, "no launcher has offered volume %s for %s: %w", d.name, d.patience, err)
	}
}

// reconnectPause keeps a launcher that is connected, and cannot answer, from being asked all the time.
const reconnectPause = 20 * time.Millisecond

// Bytes is the disk's size.
func (d *tunnelDisk) Bytes() int64 { return d.volume.Info().Bytes }

// Data returns the bytes that may be nonzero, in whole granules of 64 KiB.
func (d *tunnelDisk) Data(context.Context) (*extent.Set, error) { return d.maybeData, nil }

// Changes returns the bytes that have changed since the base, in whole granules of 64 KiB, or nil for a full backup.
func (d *tunnelDisk) Changes(context.Context) (*extent.Set, error) { return d.changed, nil }

// Identity returns "": the source has one.
func (d *tunnelDisk) Identity() string { return "" }

// Close does nothing: the far end outlives the disk.
func (d *tunnelDisk) Close() error { return nil }
