package scrub

import (
	"bytes"
	"context"
	"errors"
	"slices"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/diskset"
)

// blockBytes is the smallest part of a piece that is said to be wrong: the block of the file systems.
const blockBytes = 4 << 10

// repairCopy tries to repair a damaged copy that is wanted, if that is due, and reports whether it did.
func (w *worker) repairCopy(
	ctx context.Context, d diskset.Disk, o disk.Object, objects []disk.Object,
) bool {
	tried, before := w.triedAt[o.UID]
	if before && w.Clock.Since(tried) < repairInterval {
		return false
	}
	c := copyOf(d, o)
	wanted, others := w.Copies.CanRepair(ctx, c)
	if before && (!wanted || !others) { // the first time shows which volumes share what is wrong
		return false
	}
	w.noteAttempt(o.UID, true)
	err := d.Repair(ctx, o.Name, o.UID, func(ctx context.Context, piece int, has, want []byte) error {
		whole := extent.Extent{Offset: int64(piece) * disk.PieceBytes, Length: int64(len(want))}
		w.noteShares(ctx, d, o, objects, int64(piece), []extent.Extent{whole})
		if err := w.Copies.FetchPiece(ctx, c, piece, want); err != nil {
			return err
		}
		if has != nil {
			w.noteShares(ctx, d, o, objects, int64(piece), differentBlocks(has, want, whole.Offset))
		}
		return nil
	})
	w.noteAttempt(o.UID, false)
	switch {
	case err == nil:
		w.Logger.Warn("a damaged copy of an image was repaired", "disk", d.Name, "image", c.Image, "uuid", c.UUID)
	case errors.Is(err, errclass.NotFound): // it was deleted
	case ctx.Err() == nil:
		w.Logger.Error("a damaged copy of an image is not repaired yet", "disk", d.Name, "image", c.Image, "uuid", c.UUID,
			"error", err)
	}
	w.Changed()
	return true
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

// noteShares notes which volumes share parts of a piece of a damaged copy with it, in place of what was noted before.
func (w *worker) noteShares(
	ctx context.Context, d diskset.Disk, damaged disk.Object, objects []disk.Object, piece int64,
	wrong []extent.Extent,
) {
	c := copyOf(d, damaged)
	isSame := func(x Share) bool { return x.ImageUUID == c.UUID && x.Piece == piece }
	var found []Share
	for _, o := range objects {
		if o.Kind == disk.KindImage {
			continue // which is read itself
		}
		var parts []part
		for _, e := range wrong {
			own, err := d.Place(ctx, damaged.Name, e)
			other, errOther := d.Place(ctx, o.Name, e)
			if err := errors.Join(err, errOther); err != nil {
				w.Logger.Error("whether a volume shares what is wrong with a copy cannot be found out", "disk", d.Name,
					"object", o.Name, "error", err)
				continue
			}
			var mine []part
			for _, p := range own {
				mine = append(mine, partOf(p))
			}
			parts = append(parts, overlapping(mine, other)...)
		}
		if len(parts) > 0 {
			found = append(found, Share{
				Image: c.Image, ImageUUID: c.UUID, Object: o.Name, Piece: piece, Parts: parts, Found: w.Clock.Now(),
			})
		}
	}
	if !slices.ContainsFunc(w.current().Shares, isSame) && len(found) == 0 {
		return
	}
	w.update(func(st *state) {
		st.Shares = slices.DeleteFunc(slices.Clone(st.Shares), isSame)
		st.Shares = append(st.Shares, found[:min(len(found), maxShares-len(st.Shares))]...)
	})
	w.save(d) // before the repair, after which nothing shows it any more
	for _, x := range found {
		w.Logger.Error("a volume shares what is wrong in a damaged copy of its image: restore it from its backup",
			"disk", d.Name, "volume", x.Object, "offset", x.Offset(), "bytes", x.Bytes(), "image", x.Image)
	}
}

// pruneShares forgets volumes that are deleted, or have overwritten what was wrong. It looks once in lookInterval.
func (w *worker) pruneShares(ctx context.Context, d diskset.Disk) {
	if len(w.current().Shares) == 0 || w.Clock.Since(w.prunedAt) < lookInterval {
		return
	}
	w.prunedAt = w.Clock.Now()
	var left []Share
	changed := false
	for _, x := range w.current().Shares {
		first, last := x.Parts[0], x.Parts[len(x.Parts)-1]
		e := extent.Extent{Offset: first.Offset, Length: last.Offset + last.Length - first.Offset}
		now, err := d.Place(ctx, x.Object, e)
		if err != nil && !errors.Is(err, errclass.NotFound) {
			left = append(left, x)
			continue
		}
		parts := overlapping(x.Parts, now)
		changed = changed || !slices.Equal(parts, x.Parts)
		if x.Parts = parts; len(parts) > 0 {
			left = append(left, x)
		}
	}
	if !changed {
		return
	}
	w.update(func(st *state) { st.Shares = left })
	w.save(d)
	w.Changed()
}
