package domain

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/varvebackup/varve/internal/durable"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/sparse"
)

// Owner is who an overlay that moves must belong to afterwards.
type Owner struct {
	ClaimUID string
	Run      Run
}

// MoveFrom moves the overlays of these volumes, with their bitmaps, from the directory of another state claim. They are
// believed afterwards exactly if they would have been believed there. Of other volumes it moves the records alone, which know
// what disks there were. An overlay that is here already stays. MoveFrom may be repeated after a crash at any line. Call it
// before anything else looks at the overlays of this run.
//
// The record is what makes an overlay valid, and only one of the two claims has a valid one whenever a guest may start: it is
// written here when the overlay is here and durable, and then removed there. Between the two no guest runs, so that both are
// right. The run is handed on there first, so that the next start goes on with what a start that dies here has not moved.
//
// It returns why overlays could not be moved, such as for lack of time; those are void, there too. An error means that a guest
// must not start.
func (o *Overlays) MoveFrom(ctx context.Context, dir string, owners map[string]Owner) (lost map[string]error, err error) {
	from := &Overlays{Dir: dir}
	records, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, fmt.Errorf("move overlays: %w", err)
	}
	lost = map[string]error{}
	for _, volume := range slices.Sorted(maps.Keys(owners)) {
		if err := from.HandOn(volume, owners[volume].ClaimUID, owners[volume].Run); err != nil {
			// The record still names an earlier run, so that nobody believes the overlay any more.
			lost[volume] = err
			records = slices.DeleteFunc(records, func(path string) bool { return path == from.recordPath(volume) })
		}
	}
	for _, path := range records {
		volume := strings.TrimSuffix(filepath.Base(path), ".json")
		_, wanted := owners[volume]
		failed, err := o.moveOverlay(ctx, from, volume, wanted)
		if err != nil {
			return nil, fmt.Errorf("move overlay of %s: %w", volume, err)
		}
		if failed != nil {
			lost[volume] = failed
		}
	}
	return lost, nil
}

// moveOverlay moves one overlay, or its record alone. lost is why the overlay itself could not be moved.
func (o *Overlays) moveOverlay(ctx context.Context, from *Overlays, volume string, withOverlay bool) (lost, err error) {
	if _, err := os.Stat(o.recordPath(volume)); err == nil {
		return nil, durable.Remove(from.recordPath(volume)) // an earlier start moved it
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	text, err := readPlainFile(from.recordPath(volume))
	if err != nil {
		return err, durable.Remove(from.recordPath(volume))
	}
	if withOverlay {
		moved, failed := o.copyOverlay(ctx, from, volume)
		switch {
		case errors.Is(ctx.Err(), context.Canceled):
			return nil, ctx.Err()
		case failed == nil:
			if err := writeRecord(o.recordPath(volume), moved); err != nil {
				return nil, err
			}
			return nil, durable.Remove(from.recordPath(volume))
		case !errors.Is(failed, fs.ErrNotExist) && !errors.Is(failed, errBadRecord):
			lost = failed
		}
	}
	// A record without its overlay makes nobody believe anything, but tells which disk there was.
	if err := durable.Remove(o.overlayPath(volume)); err != nil {
		return nil, err
	}
	if err := durable.Write(o.recordPath(volume), text); err != nil {
		return nil, err
	}
	return lost, durable.Remove(from.recordPath(volume))
}

// copyOverlay makes a durable copy of an overlay, without a record, and returns the record for it. If the overlay looked as its
// record says, the copy does too.
func (o *Overlays) copyOverlay(ctx context.Context, from *Overlays, volume string) (*record, error) {
	rec, err := readRecord(from.recordPath(volume))
	if err != nil {
		return nil, err
	}
	before, err := stampOf(from.overlayPath(volume))
	if err != nil {
		return nil, err
	}
	tmp := o.overlayPath(volume) + unfinished
	if err := copyPlainFile(ctx, tmp, from.overlayPath(volume)); err != nil {
		return nil, errors.Join(err, durable.Remove(tmp))
	}
	if err := durable.Rename(tmp, o.overlayPath(volume)); err != nil {
		return nil, errors.Join(err, durable.Remove(tmp))
	}
	after, err := stampOf(from.overlayPath(volume))
	if err != nil {
		return nil, err
	}
	if after != before {
		return nil, fmt.Errorf("%w: %s was written while it was copied", errclass.Corrupt, from.overlayPath(volume))
	}
	if rec.Clean != nil && rec.Clean.Overlay == before {
		if rec.Clean.Overlay, err = stampOf(o.overlayPath(volume)); err != nil {
			return nil, err
		}
	}
	return rec, nil
}

// copyPlainFile copies a regular file to a new one. Whoever has a claim may have put something else in the place of either.
func copyPlainFile(ctx context.Context, to, from string) error {
	in, err := openPlainFile(from)
	if err != nil {
		return err
	}
	defer in.Close() //nolint:errcheck // only read
	if err := os.Remove(to); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(sparse.Copy(ctx, out, in), out.Close())
}

// openPlainFile opens a regular file for reading, and follows no link.
func openPlainFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%w: %s is not a regular file", errclass.Invalid, path)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// mostRecordBytes limits the record that is read whole.
const mostRecordBytes = 1 << 20

// readPlainFile returns the content of a small regular file.
func readPlainFile(path string) ([]byte, error) {
	f, err := openPlainFile(path)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, mostRecordBytes))
	return data, errors.Join(err, f.Close())
}
