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
	"github.com/varvebackup/varve/internal/store/reflink"
)

// blockBytes is the smallest part of a piece that is said to be wrong: the block of the file systems.
const blockBytes = 4 << 10

// repairCopy tries to repair a damaged copy that is wanted, if that is due, and reports whether it did.
func (s *Scrubber) repairCopy(
	ctx context.Context, d diskset.Disk, known *scrubbed, o disk.Object, objects []disk.Object,
) bool {
	files, ok := d.Disk.(repairable)
	tried, before := known.triedAt[o.UID]
	if !ok || before && s.Clock.Since(tried) < repairInterval {
		return false
	}
	c := copyOf(d, o)
	wanted, others := s.Copies.CanRepair(ctx, c)
	if before && !(wanted && others) { // the first time shows which volumes share what is wrong
		return false
	}
	s.noteAttempt(known, o.UID, true)
	err := files.Repair(ctx, o.Name, o.UID, func(ctx context.Context, piece int, has, want []byte) error {
		whole := extent.Extent{Offset: int64(piece) * disk.PieceBytes, Length: int64(len(want))}
		s.noteShares(ctx, d, known, o, objects, int64(piece), []extent.Extent{whole})
		if err := s.Copies.FetchPiece(ctx, c, piece, want); err != nil {
			return err
		}
		if has != nil {
			s.noteShares(ctx, d, known, o, objects, int64(piece), differentBlocks(has, want, whole.Offset))
		}
		return nil
	})
	s.save(d, known)
	s.noteAttempt(known, o.UID, false)
	switch {
	case err == nil:
		s.Logger.Warn("a damaged copy of an image was repaired", "disk", d.Name, "image", c.Image, "uuid", c.UUID)
	case errors.Is(err, errclass.NotFound): // it was deleted
	case ctx.Err() == nil:
		s.Logger.Error("a damaged copy of an image is not repaired yet", "disk", d.Name, "image", c.Image, "uuid", c.UUID,
			"error", err)
	}
	s.Changed()
	return true
}

// noteAttempt notes that the repair of a copy begins or ends.
func (s *Scrubber) noteAttempt(known *scrubbed, image disk.UID, begins bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known.triedAt[image], known.trying = s.Clock.Now(), image
	if !begins {
		known.trying = ""
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
func (s *Scrubber) noteShares(
	ctx context.Context, d diskset.Disk, known *scrubbed, damaged disk.Object, objects []disk.Object, piece int64,
	wrong []extent.Extent,
) {
	c := copyOf(d, damaged)
	var found []Share
	for _, o := range objects {
		if o.Kind == disk.KindImage {
			continue // which is read itself
		}
		var parts []part
		for _, e := range wrong {
			own, err := placesOf(ctx, d, damaged.Name, e)
			other, errOther := placesOf(ctx, d, o.Name, e)
			if err := errors.Join(err, errOther); err != nil {
				s.Logger.Error("whether a volume shares what is wrong with a copy cannot be found out", "disk", d.Name,
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
				Image: c.Image, ImageUUID: c.UUID, Object: o.Name, Piece: piece, Parts: parts, Found: s.Clock.Now(),
			})
		}
	}
	s.update(known, func(st *state) {
		st.Shares = slices.DeleteFunc(slices.Clone(st.Shares), func(x Share) bool {
			return x.ImageUUID == c.UUID && x.Piece == piece
		})
		st.Shares = append(st.Shares, found[:min(len(found), maxShares-len(st.Shares))]...)
	})
	for _, x := range found {
		s.Logger.Error("a volume shares what is wrong in a damaged copy of its image: restore it from its backup",
			"disk", d.Name, "volume", x.Object, "offset", x.Offset(), "bytes", x.Bytes(), "image", x.Image)
	}
}

// placesOf returns where a disk has a part of an object.
func placesOf(ctx context.Context, d diskset.Disk, name disk.Name, e extent.Extent) ([]reflink.Placed, error) {
	files, ok := d.Disk.(repairable)
	if !ok {
		return nil, errclass.Errorf(errclass.Invalid, "disk %s does not say where its data is", d.UUID)
	}
	return files.Place(ctx, name, e)
}

// pruneShares forgets volumes that are deleted, or have overwritten what was wrong. It looks once in lookInterval.
func (s *Scrubber) pruneShares(ctx context.Context, d diskset.Disk, known *scrubbed) {
	if len(known.state.Shares) == 0 || s.Clock.Since(known.prunedAt) < lookInterval {
		return
	}
	known.prunedAt = s.Clock.Now()
	var left []Share
	changed := false
	for _, x := range known.state.Shares {
		first, last := x.Parts[0], x.Parts[len(x.Parts)-1]
		e := extent.Extent{Offset: first.Offset, Length: last.Offset + last.Length - first.Offset}
		now, err := placesOf(ctx, d, x.Object, e)
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
	s.update(known, func(st *state) { st.Shares = left })
	s.save(d, known)
	s.Changed()
}
