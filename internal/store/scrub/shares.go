package scrub

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/diskset"
)

// noteShares notes which volumes share parts of a piece of a damaged copy, in place of what was noted before. An error
// means that it cannot find that out now: then the piece must stay as it is. has is what the piece has now, or nil if
// it cannot be read.
//
// The volumes that exist now are all there are: nobody can clone a damaged copy. pruneShares finds those that are made
// later of such a volume, or of its snapshot.
func (w *worker) noteShares(
	ctx context.Context, d diskset.Disk, damaged disk.Object, piece int64, has []byte, wrong []extent.Extent,
) error {
	objects, err := d.List(ctx)
	if err != nil {
		return err
	}
	var own []part
	for _, e := range wrong {
		placed, err := d.Place(ctx, damaged.Name, e)
		if err != nil {
			return err
		}
		for _, p := range placed {
			wrong := partOf(p)
			if from := wrong.Offset - piece*disk.PieceBytes; has != nil {
				wrong.Sums = sumBlocks(has[from : from+wrong.Length])
			}
			own = append(own, wrong)
		}
	}
	c := copyOf(d, damaged)
	var found []Share
	for _, o := range objects {
		if o.UID == damaged.UID { // another image may have been made of a volume with the wrong block, and has its hash
			continue
		}
		parts, err := w.findShared(ctx, d, own, o.Name)
		if err != nil {
			return err
		}
		if len(parts) > 0 {
			found = append(found, Share{
				Image: c.Image, ImageUUID: c.UUID, Object: o.Name, Piece: piece, Parts: parts, Found: w.Clock.Now(),
			})
		}
	}
	isSame := func(x Share) bool { return x.ImageUUID == c.UUID && x.Piece == piece }
	known := w.currentState()
	if !slices.ContainsFunc(slices.Concat(known.Shares, known.Left), isSame) && len(found) == 0 {
		return nil
	}
	added := 0
	w.updateState(func(st *state) {
		st.Shares = slices.DeleteFunc(slices.Clone(st.Shares), isSame)
		st.Left = slices.DeleteFunc(slices.Clone(st.Left), isSame)
		added = st.addShares(found)
		w.looked = map[disk.UID]bool{}
	})
	w.saveState(d) // before the repair, after which nothing shows it any more
	w.logShares(d, found, added < len(found))
	return nil
}

// addShares adds as many volumes as there is room for, and returns how many. It remembers which pieces the others
// share.
func (st *state) addShares(found []Share) (added int) {
	added = min(len(found), maxShares-len(st.Shares))
	st.Shares = append(st.Shares, found[:added]...)
	for _, x := range found[added:] {
		x.Object = ""
		i := slices.IndexFunc(st.Left, func(y Share) bool { return y.key() == x.key() })
		switch {
		case i >= 0:
			st.Left[i].Parts = mergeParts(st.Left[i].Parts, x.Parts)
		case len(st.Left) < maxShares:
			st.Left = append(st.Left, x)
		default:
			st.Omitted = true
		}
	}
	return added
}

func (w *worker) logShares(d diskset.Disk, found []Share, omitted bool) {
	if omitted {
		w.Logger.Error("more volumes share what is wrong in damaged copies than can be noted: those that this log names "+
			"last are not all in the Node's condition", "disk", d.Name, "noted", maxShares)
	}
	for _, x := range found {
		w.Logger.Error("a volume shares what is wrong in a damaged copy of its image: restore it from its backup",
			"disk", d.Name, "volume", x.Object, "offset", x.Offset(), "bytes", x.Bytes(), "image", x.Image)
	}
}

// findShared returns which of some parts an object has at the same offset and place, or may have. An error means that
// the disk does not say so now.
func (w *worker) findShared(ctx context.Context, d diskset.Disk, parts []part, object disk.Name) ([]part, error) {
	if len(parts) == 0 {
		return nil, nil
	}
	first, last := parts[0], parts[len(parts)-1]
	e := extent.Extent{Offset: first.Offset, Length: last.Offset + last.Length - first.Offset}
	placed, err := d.Place(ctx, object, e)
	switch {
	case err == nil:
		return dropOverwritten(ctx, d, object, findOverlaps(parts, placed))
	case errors.Is(err, errclass.NotFound):
		return nil, nil
	case errclass.Of(err) != errclass.None || ctx.Err() != nil:
		return nil, err
	}
	w.Logger.Error("cannot find out whether a volume shares what is wrong with a copy, so it is named", "disk", d.Name,
		"object", object, "error", err)
	return parts, nil
}

// dropOverwritten returns what an object still has of the parts that are at their place. A part without sums counts as
// still there, and so does one that cannot be read.
func dropOverwritten(
	ctx context.Context, d diskset.Disk, object disk.Name, parts []part,
) (left []part, err error) {
	hasSums := func(p part) bool { return p.Sums != "" }
	if !slices.ContainsFunc(parts, hasSums) {
		return parts, nil
	}
	lease, err := d.Open(ctx, object)
	switch {
	case errors.Is(err, errclass.NotFound):
		return nil, nil
	case errors.Is(err, errclass.Corrupt): // another image that is damaged
		return parts, nil
	case err != nil:
		return nil, err
	}
	defer func() { err = errors.Join(err, lease.Close()) }()
	reader := newPartReader() // a repair that was given up may still be here while the worker reads
	for _, p := range parts {
		has, err := reader.readPart(lease.Path(), p.extent())
		if !hasSums(p) || err != nil {
			left = append(left, p)
			continue
		}
		left = append(left, p.findSame(has)...)
	}
	return left, nil
}

// findSame returns what is left of a part that has other bytes now.
func (p part) findSame(has []byte) (same []part) {
	var blocks extent.Set
	now := sumBlocks(has)
	for at := int64(0); at < p.Length; at += blockBytes {
		i := at / blockBytes * sumDigits
		if now[i:i+sumDigits] == p.Sums[i:i+sumDigits] {
			blocks.Append(extent.Extent{Offset: p.Offset + at, Length: min(blockBytes, p.Length-at)})
		}
	}
	for e := range blocks.All() {
		same = append(same, p.within(e))
	}
	return same
}

// shareKey is a piece of an image that was wrong, and the object that shares it.
type shareKey struct {
	object disk.Name
	image  string
	piece  int64
}

func (s Share) key() shareKey { return shareKey{object: s.Object, image: s.ImageUUID, piece: s.Piece} }

// pruneShares forgets volumes that are deleted, or have overwritten what was wrong, and adds those that were made of
// them meanwhile. It looks once in lookInterval, or less often if there is much to read.
func (w *worker) pruneShares(ctx context.Context, d diskset.Disk) {
	known := w.currentState()
	noted := known.Shares
	var bytes int64
	for _, x := range noted {
		bytes += x.Bytes()
	}
	if len(noted)+len(known.Left) == 0 || w.Clock.Since(w.prunedAt) < lookInterval+w.pauseAfter(bytes) {
		return
	}
	w.prunedAt = w.Clock.Now()
	left := map[shareKey][]part{}
	for _, x := range noted {
		parts, err := w.findShared(ctx, d, x.Parts, x.Object)
		if err != nil {
			parts = x.Parts
		}
		left[x.key()] = parts
	}
	// After that, so that a clone that was made of a volume before it overwrote its block is there.
	found, looked, err := w.findClones(ctx, d, slices.Concat(noted, known.Left))
	if err != nil {
		return // what is forgotten now could not be found any more
	}
	changed, added := false, 0
	w.updateState(func(st *state) {
		var next []Share
		for _, x := range st.Shares {
			if parts, wasNoted := left[x.key()]; wasNoted {
				changed = changed || !slices.Equal(parts, x.Parts)
				x.Parts = parts
			}
			if len(x.Parts) > 0 {
				next = append(next, x)
			}
		}
		st.Shares = next
		wasLookedFor := func(x Share) bool { // found has all that share it
			return slices.ContainsFunc(known.Left, func(y Share) bool { return isSamePiece(x, y) })
		}
		st.Left = slices.DeleteFunc(slices.Clone(st.Left), wasLookedFor)
		if added = st.addShares(found); added == len(found) {
			w.looked = looked
		}
		changed = changed || added > 0 || !slices.EqualFunc(st.Left, known.Left, isSamePiece)
	})
	if !changed {
		return
	}
	w.saveState(d)
	w.logShares(d, found, added < len(found))
	w.Changed()
}

// isSamePiece reports whether two shares of the same object, or of none, are the same.
func isSamePiece(a, b Share) bool { return a.key() == b.key() && slices.Equal(a.Parts, b.Parts) }

// findClones returns the objects that have what was noted of others and are not noted themselves, and all objects at
// which it has looked. An object that does not share it once never will: looking again would take long where files have
// many extents.
func (w *worker) findClones(
	ctx context.Context, d diskset.Disk, noted []Share,
) (found []Share, looked map[disk.UID]bool, err error) {
	objects, err := d.List(ctx)
	if err != nil {
		return nil, nil, err
	}
	w.mu.Lock()
	before := w.looked
	w.mu.Unlock()
	known := map[shareKey]bool{}
	for _, x := range noted {
		known[x.key()] = true
	}
	looked = map[disk.UID]bool{}
	for _, o := range objects {
		looked[o.UID] = true
		if before[o.UID] {
			continue
		}
		all := map[shareKey]int{} // where in found
		for _, x := range noted {
			x.Object = o.Name
			if known[x.key()] || string(o.UID) == x.ImageUUID {
				continue
			}
			parts, err := w.findShared(ctx, d, x.Parts, o.Name)
			if err != nil {
				return nil, nil, err
			}
			if len(parts) == 0 {
				continue
			}
			i, again := all[x.key()]
			if !again {
				i = len(found)
				all[x.key()] = i
				x.Parts, x.Found = nil, w.Clock.Now()
				found = append(found, x)
			}
			found[i].Parts = mergeParts(found[i].Parts, parts)
		}
	}
	return found, looked, nil
}

// mergeParts returns what is in either of two lists of parts, in order.
func mergeParts(a, b []part) []part {
	all := slices.Concat(a, b)
	slices.SortFunc(all, func(x, y part) int { return cmp.Compare(x.Offset, y.Offset) })
	var merged []part
	var end int64
	for _, p := range all {
		if cut := end - p.Offset; cut > 0 {
			if cut >= p.Length {
				continue
			}
			p = p.within(extent.Extent{Offset: end, Length: p.Length - cut})
		}
		merged = append(merged, p)
		end = p.Offset + p.Length
	}
	return merged
}
