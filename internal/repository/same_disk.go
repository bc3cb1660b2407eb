package repository

import (
	"bytes"
	"errors"
	"hash/fnv"
	"math/rand/v2"

	"github.com/kopia/kopia/repo/object"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/internal/repository/image"
	"github.com/varvebackup/varve/internal/repository/table"
)

// sampleCount is how many unchanged blocks of a disk are compared with its parent where nothing else shows which disk it is: this
// many that have data in the parent, and at most as many that are zero there.
const sampleCount = 16

// contentError says that a block differs from the parent although it did not change.
type contentError struct{ block extent.Extent }

func (e *contentError) Error() string {
	return "bytes " + e.block.String() + " did not change, and are not as in the parent"
}

// whyReadAgain returns why a disk must be read as a whole after an attempt to follow its parent failed with err; empty if that
// would fail as well.
func whyReadAgain(err error) FullReason {
	var damaged *parentError
	var other *contentError
	switch {
	case errors.As(err, &damaged) && errors.Is(err, errclass.Corrupt):
		return FullParentDamaged
	case errors.As(err, &other):
		return FullOtherContent
	}
	return ""
}

// findNamesakes returns the other disks of the history whose restore points have the Change that the changes of d are counted from.
// One checkpoint of libvirt is a bitmap of that name in the image of each disk. Only the content tells which image an NBD export
// belongs to.
func (h *history) findNamesakes(d *DiskSource) (out []*Disk) {
	if d.Changes == nil || d.Changes.Exclusive {
		return nil
	}
	for _, p := range h.points {
		for i := range p.Disks {
			if o := &p.Disks[i]; o.Name != d.Name && o.Change == d.Changes.Since {
				out = append(out, o)
			}
		}
	}
	return out
}

// checkSameDisk fails with a contentError if the source is not the disk that the parent has. A bitmap's name leads back to one
// moment, and the image that has the bitmap now is one of those that had it then. For each of these that the history has,
// checkSameDisk compares one unchanged block in which it differs from the parent. If there is no such block, what is taken over is
// the same in both. Against images that the history does not have, it compares samples.
func (w *diskWriter) checkSameDisk() error {
	if !w.plan.isIncremental() || w.source.Changes.Exclusive {
		return nil
	}
	w.parentImage = image.New(*w.plan.previous, w.r.conn.Reader(), w.previous.geometry, w.previous.list)
	defer func() { w.parentImage = nil }()
	for _, o := range w.namesakes[w.source.Name] {
		if err := w.compareWhereDifferent(o); err != nil {
			return err
		}
	}
	return w.compareSamples()
}

// compareWhereDifferent compares the source with the parent in the first unchanged block in which the parent differs from o.
func (w *diskWriter) compareWhereDifferent(o *Disk) error {
	other, err := image.Open(w.ctx, w.r.conn.Reader(), *o)
	if err != nil {
		return &parentError{err}
	}
	for i := range w.reusableRegions() {
		if w.sameRegion(other, i) {
			continue
		}
		blocks, err := w.reusedBlocks(i)
		if err != nil {
			return err
		}
		for _, b := range blocks {
			same, err := w.sameBlock(other, b)
			if err != nil {
				return &parentError{err}
			}
			if !same {
				return w.compareBlock(b)
			}
		}
	}
	return nil
}

// reusableRegions returns how many regions may have blocks that are taken over from the parent.
func (w *diskWriter) reusableRegions() int {
	return min(len(w.previous.list), w.plan.geometry.RegionCount())
}

// reusedBlock is a block that is taken over from the parent: its bytes, and its object there.
type reusedBlock struct {
	extent.Extent
	object object.ID
}

// reusedBlocks returns those of region i. It reads the region's table only if there are any.
func (w *diskWriter) reusedBlocks(i int) (out []reusedBlock, err error) {
	g := w.plan.geometry
	for j := range g.BlockCount(i) {
		if b := g.Block(i, j); !w.source.Changes.Set.Overlaps(b) {
			out = append(out, reusedBlock{Extent: b})
		}
	}
	if len(out) == 0 {
		return nil, nil
	}
	entries, err := w.parentImage.ReadRegion(w.ctx, i)
	if err != nil {
		return nil, &parentError{err}
	}
	reused := out[:0]
	for _, b := range out {
		if _, j := g.Locate(b.Offset); j < len(entries) && entries[j].Length == b.Length {
			b.object = entries[j].Object
			reused = append(reused, b)
		}
	}
	return reused, nil
}

// sameRegion says whether region i is known to be the same in another disk without reading its table.
func (w *diskWriter) sameRegion(other *Image, i int) bool {
	return other.Geometry.BlockBytes == w.previous.geometry.BlockBytes && i < len(other.List) && other.List[i] == w.previous.list[i]
}

// sameBlock says whether another disk has the same bytes in the block's place. Beyond its end it counts as zeroes, because that
// is what growing a disk adds.
func (w *diskWriter) sameBlock(other *Image, b reusedBlock) (bool, error) {
	if b.End() <= other.Disk.Bytes {
		i, j := other.Geometry.Locate(b.Offset)
		if other.Geometry.Block(i, j) == b.Extent {
			entries, err := other.ReadRegion(w.ctx, i)
			if err != nil {
				return false, err
			}
			return entries[j].Object == b.object, nil
		}
	}
	if b.Offset >= other.Disk.Bytes {
		return w.isZero(b), nil
	}
	common := b.Extent
	common.Length = min(b.End(), other.Disk.Bytes) - b.Offset
	if w.isZero(b) {
		n, zero, err := other.NextRun(w.ctx, common)
		if err != nil || zero && n == common.Length {
			return err == nil, err
		}
	}
	mine, err := w.readReused(b)
	if err != nil {
		return false, err
	}
	theirs := make([]byte, b.Length)
	if err := other.ReadAt(w.ctx, theirs[:common.Length], b.Offset); err != nil {
		return false, err
	}
	return bytes.Equal(mine, theirs), nil
}

// isZero says whether the parent has zeroes in a block.
func (w *diskWriter) isZero(b reusedBlock) bool {
	return b.object == w.plan.previous.Zero || b.object == w.plan.previous.ZeroTail
}

// readReused returns what the parent has in a block.
func (w *diskWriter) readReused(b reusedBlock) ([]byte, error) {
	if w.isZero(b) {
		return make([]byte, b.Length), nil
	}
	return table.ReadBlock(w.ctx, w.previous.r, b.object, b.Length)
}

// compareSamples compares some unchanged blocks, different ones each time. It detects nearly every other disk, and never rejects
// the same one.
func (w *diskWriter) compareSamples() error {
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(w.id + w.source.Name)) // It never fails.
	random := rand.New(rand.NewPCG(hash.Sum64(), sampleCount))
	if err := w.compareDataSamples(random); err != nil {
		return err
	}
	return w.compareZeroSamples(random)
}

// compareDataSamples compares blocks that have data in the parent.
func (w *diskWriter) compareDataSamples(random *rand.Rand) error {
	regions := w.differentRegions()
	for range sampleCount {
		if len(regions) == 0 {
			return nil
		}
		blocks, err := w.reusedBlocks(regions[random.IntN(len(regions))])
		if err != nil {
			return err
		}
		var data []reusedBlock
		for _, b := range blocks {
			if b.object != w.plan.previous.Zero {
				data = append(data, b)
			}
		}
		if len(data) == 0 {
			continue
		}
		if err := w.compareBlock(data[random.IntN(len(data))]); err != nil {
			return err
		}
	}
	return nil
}

// compareZeroSamples compares blocks that are zero in the parent where the source may have data.
func (w *diskWriter) compareZeroSamples(random *rand.Rand) error {
	g := w.plan.geometry
	all := extent.NewSet(extent.Extent{Length: min(g.Bytes, w.plan.previous.Bytes)})
	changed := w.source.Changes.Set.Intersect(all).Widen(g.BlockBytes, g.Bytes)
	if w.source.Data != nil {
		all = all.Intersect(*w.source.Data)
	}
	all = all.Subtract(changed)
	total := all.Bytes()
	for range sampleCount {
		if total == 0 {
			return nil
		}
		at := nthByte(all, random.Int64N(total))
		i, _ := g.Locate(at)
		blocks, err := w.reusedBlocks(i)
		if err != nil {
			return err
		}
		for _, b := range blocks {
			if b.Contains(extent.Extent{Offset: at, Length: 1}) && b.object == w.plan.previous.Zero {
				if err := w.compareBlock(b); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// nthByte returns the offset of byte n of a set that has more than n bytes.
func nthByte(s extent.Set, n int64) int64 {
	for e := range s.All() {
		if n < e.Length {
			return e.Offset + n
		}
		n -= e.Length
	}
	return n
}

// differentRegions returns the regions that may have blocks to take over, one for each content: the holes of a sparse disk count
// once.
func (w *diskWriter) differentRegions() (out []int) {
	seen := map[object.ID]bool{}
	for i := range w.reusableRegions() {
		if id := w.previous.list[i].Object; !seen[id] {
			seen[id] = true
			out = append(out, i)
		}
	}
	return out
}

// compareBlock fails with a contentError if the source differs from the parent in a block. It stores nothing, because that would
// revive a block that is marked as deleted.
func (w *diskWriter) compareBlock(b reusedBlock) error {
	buffer, _ := w.buffers.Get().(*[]byte)
	defer w.buffers.Put(buffer)
	data := (*buffer)[:b.Length]
	if w.isKnownHole(b.Extent) {
		clear(data)
	} else if err := w.source.Reader.ReadAt(w.ctx, data, b.Offset); err != nil {
		return errReadSource(err)
	}
	same, err := w.isBlock(b, data)
	if err == nil && !same {
		err = &contentError{b.Extent}
	}
	return err
}

// isBlock says whether data is what the parent has in a block. If the repository uses Varve's hash, the hash of data tells, and
// the block need not be read.
func (w *diskWriter) isBlock(b reusedBlock, data []byte) (bool, error) {
	if w.r.conn.Kopia.ContentReader().ContentFormat().GetHashFunction() != engine.HashAlgorithm {
		stored, err := w.readReused(b)
		if err != nil {
			return false, &parentError{err}
		}
		return bytes.Equal(stored, data), nil
	}
	id, err := table.BlockContent(b.object)
	if err != nil {
		return false, &parentError{err}
	}
	return w.r.conn.Rehasher()(id, data) == nil, nil
}
