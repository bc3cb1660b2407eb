package scrub

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/diskset"
)

// blockBytes is the smallest part of a piece that is said to be wrong: the block of the file systems.
const blockBytes = 4 << 10

// repairCopy tries to repair a damaged copy that is wanted, if that is due, and reports whether it did.
func (w *worker) repairCopy(ctx context.Context, d diskset.Disk, o disk.Object) bool {
	tried, before := w.triedAt[o.UID]
	if before && w.Clock.Since(tried) < repairInterval || w.Clock.Now().Before(w.busyUntil[o.UID]) {
		return false
	}
	c := copyOf(d, o)
	wanted, others := w.Copies.CanRepair(ctx, c)
	switch { // the first time shows which volumes share what is wrong
	case before && (!wanted || others == NoOthers):
		return false
	case before && others == DamagedOthers && w.Clock.Since(tried) < w.pauseRepair(o.UID):
		return false
	}
	w.noteAttempt(o.UID, true)
	fetched := 0
	err := d.Repair(ctx, o.Name, o.UID, func(ctx context.Context, piece int, has, want []byte) error {
		w.countBad(o.UID, int64(piece))
		whole := extent.Extent{Offset: int64(piece) * disk.PieceBytes, Length: int64(len(want))}
		if err := w.noteShares(ctx, d, o, int64(piece), has, []extent.Extent{whole}); err != nil {
			return err
		}
		if err := w.Copies.FetchPiece(ctx, c, piece, want); err != nil {
			return err
		}
		fetched++
		if has == nil {
			return nil
		}
		return w.noteShares(ctx, d, o, int64(piece), has, differentBlocks(has, want, whole.Offset))
	})
	if errors.Is(err, disk.ErrBusy) {
		w.postponeAttempt(o.UID)
		return false
	}
	w.noteAttempt(o.UID, false)
	switch {
	case err == nil:
		delete(w.failures, o.UID)
		w.countRepaired(o.UID, fetched)
		w.Copies.NoteRepair(ctx, c, fetched, nil)
		w.Logger.Warn("a damaged copy of an image was repaired", "disk", d.Name, "image", c.Image, "uuid", c.UUID)
	case errors.Is(err, errclass.NotFound): // it was deleted
	case ctx.Err() == nil:
		w.failures[o.UID]++
		w.Copies.NoteRepair(ctx, c, 0, err)
		w.Logger.Error("a damaged copy of an image is not repaired yet", "disk", d.Name, "image", c.Image, "uuid", c.UUID,
			"error", err)
	}
	w.Changed()
	return true
}

// pauseRepair returns how long to wait before the next attempt to repair a copy from others that are damaged, too.
func (w *worker) pauseRepair(image disk.UID) time.Duration {
	pause := repairInterval
	for range w.failures[image] - 1 {
		pause = min(2*pause, longestRepairInterval)
	}
	return pause
}

// noteAttempt notes that the repair of a copy begins or ends.
func (w *worker) noteAttempt(image disk.UID, begins bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.triedAt[image], w.trying = w.Clock.Now(), image
	if !begins {
		w.trying = ""
	}
}

// postponeAttempt has the repair of a copy tried again soon, as if nobody had tried it: somebody else works on the
// copy.
func (w *worker) postponeAttempt(image disk.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.triedAt, image)
	w.trying = ""
	w.busyUntil[image] = w.Clock.Now().Add(lookInterval)
}

// differentBlocks returns the blocks at an offset in which two pieces differ.
func differentBlocks(a, b []byte, offset int64) []extent.Extent {
	var set extent.Set
	for at := 0; at < len(a); at += blockBytes {
		if end := min(at+blockBytes, len(a)); !bytes.Equal(a[at:end], b[at:end]) {
			set.Append(extent.Extent{Offset: offset + int64(at), Length: int64(end - at)})
		}
	}
	return slices.Collect(set.All())
}
