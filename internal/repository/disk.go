package repository

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"sync"
	"time"

	"github.com/kopia/kopia/repo/object"
	"golang.org/x/sync/errgroup"

	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/repository/table"
)

// writeDisk stores one disk. If the parent turns out to be damaged, or to be of another disk, the whole disk is read instead.
func (s *session) writeDisk(d *DiskSource, parent *RestorePoint) (*diskWriter, error) {
	plan, err := planDisk(d, parent, s.doubts[d.Name], s.q.BlockBytes)
	if err != nil {
		return nil, err
	}
	out, err := s.tryWriteDisk(d, plan)
	if full := whyReadAgain(err); full != "" {
		plan.full = full
		out, err = s.tryWriteDisk(d, plan)
	}
	return out, err
}

// diskWriter is one pass over a disk.
type diskWriter struct {
	*session
	source *DiskSource
	plan   diskPlan
	// work is what the session manifest names, list holds the regions, and done describes the disk once it is stored.
	work     *diskWork
	list     []object.IndirectObjectEntry
	done     *Disk
	blocks   *table.BlockWriter
	previous previousTables
	// parentImage holds the parent's tables while the disk is compared with it.
	parentImage *Image
	buffers     sync.Pool
	// turn is held by the region that is handing out its blocks, each run of them to one of the slots. So blocks enter the packs in
	// about the order of the disk, which is the order in which they are restored.
	turn  sync.Mutex
	slots chan struct{}

	mu    sync.Mutex
	stats Stats
	// zeroRegions holds the tables of regions without data, by the region's length.
	zeroRegions map[int64]object.ID
}

func (s *session) tryWriteDisk(d *DiskSource, plan diskPlan) (*diskWriter, error) {
	s.progress.beginDisk(s.ctx, d, plan)
	g := plan.geometry
	w := &diskWriter{session: s, source: d, plan: plan, work: s.work.addDisk(g)}
	w.forgetZeroes()
	w.slots = make(chan struct{}, s.q.Workers)
	w.buffers.New = func() any { b := make([]byte, min(g.RunBytes(), g.Bytes)); return &b }
	var err error
	if w.previous, err = w.loadPreviousTables(); err != nil {
		return nil, err
	}
	if err := w.checkSameDisk(); err != nil {
		return nil, err
	}
	if err := w.writeRegions(); err != nil {
		return nil, err
	}
	if plan.isIncremental() {
		if err := s.checkClones(g, w.list, plan.previousID); err != nil {
			return nil, err
		}
	}
	w.done, err = w.describeDisk()
	return w, err
}

// forgetZeroes makes zero blocks and empty regions be stored again when they are next needed.
func (w *diskWriter) forgetZeroes() {
	w.blocks = table.NewBlockWriter(w.w, w.plan.geometry, compressors[w.q.Compression])
	w.zeroRegions = map[int64]object.ID{}
}

// writeRegions writes all regions, several in parallel.
func (w *diskWriter) writeRegions() error {
	g := w.plan.geometry
	w.list = make([]object.IndirectObjectEntry, g.RegionCount())
	group, ctx := errgroup.WithContext(w.ctx)
	group.SetLimit(w.q.Workers)
	for i := range w.list {
		if ctx.Err() != nil {
			break
		}
		e := g.Region(i)
		w.list[i] = object.IndirectObjectEntry{Start: e.Offset, Length: e.Length}
		if w.isUnchanged(i, e) {
			w.list[i].Object = w.previous.list[i].Object
			w.progress.addDone(Progress{ScannedBytes: e.Length})
			continue
		}
		group.Go(func() error { return w.storeRegion(ctx, i) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return w.ctx.Err()
}

// storeRegion stores region i and notes it in the list.
func (w *diskWriter) storeRegion(ctx context.Context, i int) error {
	e, began := w.plan.geometry.Region(i), w.w.Time()
	id, err := w.writeRegion(ctx, i, e, &began)
	if err != nil {
		return fmt.Errorf("bytes %s: %w", e, err)
	}
	w.list[i].Object = id
	w.session.work.addRegion(w.work, w.list[i], began)
	return nil
}

// storeMissing stores again what is gone of the disk, if anything is.
func (w *diskWriter) storeMissing() error {
	regions, any := w.session.work.takeBroken(w.work)
	if !any {
		return nil
	}
	w.forgetZeroes()
	stats := w.stats
	for _, i := range regions {
		if err := w.storeRegion(w.ctx, i); err != nil {
			return err
		}
	}
	w.stats = stats
	var err error
	w.done, err = w.describeDisk()
	return err
}

// isUnchanged says whether region i, which is e, is the same as in the parent. If blobs are lost, only the region's table says whether
// all of its blocks are there.
func (w *diskWriter) isUnchanged(i int, e extent.Extent) bool {
	return w.plan.isIncremental() && w.previous.hasRegion(i, e) && !w.source.Changes.Set.Overlaps(e) && !w.w.Losses().Any()
}

// isKnownHole says whether e is known to be zero without reading it.
func (w *diskWriter) isKnownHole(e extent.Extent) bool {
	return w.source.Data != nil && !w.source.Data.Overlaps(e)
}

// writeRegion stores region i, which is e, and returns its table's ID. It moves began to the time at which it starts to store the
// table.
func (w *diskWriter) writeRegion(ctx context.Context, i int, e extent.Extent, began *time.Time) (object.ID, error) {
	if !w.plan.isIncremental() && w.isKnownHole(e) {
		id, err := w.zeroRegion(ctx, i, e.Length)
		if err != nil || !w.previous.hasRegion(i, e) || w.previous.list[i].Object == id {
			w.progress.addDone(Progress{ScannedBytes: e.Length})
			return id, err
		}
	}
	before, err := w.previous.readRegion(ctx, i)
	if err != nil {
		return object.EmptyID, err
	}
	r := regionWriter{diskWriter: w, entries: make([]object.IndirectObjectEntry, w.plan.geometry.BlockCount(i))}
	was := make([]object.ID, len(r.entries))
	for j := range r.entries {
		b := w.plan.geometry.Block(i, j)
		r.entries[j] = object.IndirectObjectEntry{Start: b.Offset - e.Offset, Length: b.Length}
		if j < len(before) && before[j].Length == b.Length {
			was[j] = before[j].Object
		}
	}
	if err := r.writeBlocks(ctx, i, was); err != nil {
		return object.EmptyID, err
	}
	w.addStats(r.did)
	w.progress.addDone(Progress{ScannedBytes: e.Length, ChangedBytes: r.did.ChangedBytes, DeduplicatedBytes: r.had})
	*began = w.w.Time()
	return table.WriteRegion(ctx, w.w, r.entries)
}

// regionWriter is the work on one region.
type regionWriter struct {
	*diskWriter
	entries []object.IndirectObjectEntry

	mu  sync.Mutex
	did Stats
	// had is how many bytes of changed blocks the repository already had.
	had int64
}

// writeBlocks finds an object for each block of region i. was holds the object that each block had in the parent, or EmptyID if it
// had none.
func (r *regionWriter) writeBlocks(ctx context.Context, i int, was []object.ID) error {
	group, inner := errgroup.WithContext(ctx)
	var kept []object.ID
	r.turn.Lock()
	for j := 0; j < len(r.entries); {
		if r.isKept(i, j, was) {
			r.entries[j].Object = was[j]
			kept = append(kept, was[j])
			j++
			continue
		}
		first, end := j, r.runEnd(i, j, was)
		r.slots <- struct{}{}
		group.Go(func() error {
			defer func() { <-r.slots }()
			return r.storeRun(inner, i, first, end, was)
		})
		j = end
	}
	r.turn.Unlock()
	group.Go(func() error { return r.previous.checkReused(inner, kept) })
	return group.Wait()
}

// isKept says whether block j of region i is the same as in the parent, where it was the object was[j], and is not lost.
func (r *regionWriter) isKept(i, j int, was []object.ID) bool {
	return was[j] != object.EmptyID && r.plan.isIncremental() && !r.source.Changes.Set.Overlaps(r.plan.geometry.Block(i, j)) && !r.isLost(was[j])
}

// runEnd returns the block behind the run that begins with block j of region i: of blocks in a row that have to be stored, are all
// read or all known to be holes, and lie in one aligned piece of the disk of the length of a run.
func (r *regionWriter) runEnd(i, j int, was []object.ID) int {
	g := r.plan.geometry
	hole := r.isKnownHole(g.Block(i, j))
	end := j + 1
	for end < len(r.entries) && !r.q.blockwise && g.RunOf(end) == g.RunOf(j) && !r.isKept(i, end, was) && r.isKnownHole(g.Block(i, end)) == hole {
		end++
	}
	return end
}

// storeRun reads the run of blocks first to end of region i at once, and stores each of them.
func (r *regionWriter) storeRun(ctx context.Context, i, first, end int, was []object.ID) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	g := r.plan.geometry
	start, behind := g.Block(i, first).Offset, g.Block(i, end-1).End()
	var data []byte
	if !r.isKnownHole(g.Block(i, first)) {
		buffer, _ := r.buffers.Get().(*[]byte)
		defer r.buffers.Put(buffer)
		data = (*buffer)[:behind-start]
		if err := r.source.Reader.ReadAt(ctx, data, start); err != nil {
			return errReadSource(err)
		}
		r.progress.addDone(Progress{ReadBytes: behind - start})
	}
	for j := first; j < end; j++ {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		e := g.Block(i, j)
		var block []byte
		if data != nil {
			block = data[e.Offset-start : e.End()-start]
		}
		if err := r.storeBlock(ctx, i, &r.entries[j], e, block, was[j]); err != nil {
			return err
		}
	}
	return nil
}

// storeBlock stores the block e of the disk, which is in region i, and notes it in entry. data is its content, or nil for a known
// hole, and was is its object in the parent.
func (r *regionWriter) storeBlock(ctx context.Context, i int, entry *object.IndirectObjectEntry, e extent.Extent, data []byte, was object.ID) (err error) {
	var did Stats
	var had int64
	began := r.w.Time()
	if entry.Object, err = r.writeBlock(ctx, e, data, &did); err != nil {
		return err
	}
	r.session.work.addBlock(r.diskWriter.work, i, *entry, began)
	if entry.Object != was && (was != object.EmptyID || !r.isHole(*entry)) {
		did.ChangedBytes += e.Length
		if r.hadBlockBefore(ctx, entry.Object) {
			had = e.Length
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.did.Add(did)
	r.had += had
	return nil
}

// writeBlock stores the bytes e of the disk. data is what was read there, or nil for a known hole.
func (w *diskWriter) writeBlock(ctx context.Context, e extent.Extent, data []byte, did *Stats) (object.ID, error) {
	if data == nil {
		return w.blocks.WriteZeroes(ctx, e.Length)
	}
	did.ReadBytes += e.Length
	if table.IsZero(data) {
		did.ZeroBytes += e.Length
		return w.blocks.WriteZeroes(ctx, e.Length)
	}
	return w.blocks.Write(ctx, data)
}

func errReadSource(err error) error { return fmt.Errorf("read the source: %w", err) }

// isHole says whether a block that was just settled is all zeroes.
func (w *diskWriter) isHole(e object.IndirectObjectEntry) bool {
	return w.blocks.IsZeroBlock(e)
}

// zeroRegion returns the table of region i without data, and stores it on first use.
func (w *diskWriter) zeroRegion(ctx context.Context, i int, length int64) (object.ID, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if id, ok := w.zeroRegions[length]; ok {
		return id, nil
	}
	entries := make([]object.IndirectObjectEntry, w.plan.geometry.BlockCount(i))
	for j := range entries {
		b := w.plan.geometry.Block(i, j)
		id, err := w.blocks.WriteZeroes(ctx, b.Length)
		if err != nil {
			return object.EmptyID, err
		}
		entries[j] = object.IndirectObjectEntry{Start: b.Offset - w.plan.geometry.Region(i).Offset, Length: b.Length, Object: id}
	}
	id, err := table.WriteRegion(ctx, w.w, entries)
	if err == nil {
		w.zeroRegions[length] = id
	}
	return id, err
}

func (w *diskWriter) addStats(d Stats) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stats.Add(d)
}

// describeDisk stores the list of regions and describes the disk.
func (w *diskWriter) describeDisk() (*Disk, error) {
	began := w.w.Time()
	id, data, err := table.WriteList(w.ctx, w.w, w.list)
	if err != nil {
		return nil, err
	}
	w.session.work.setList(w.work, id, began)
	g := w.plan.geometry
	last := g.Block(g.RegionCount()-1, g.BlockCount(g.RegionCount()-1)-1)
	zero, err := w.blocks.WriteZeroes(w.ctx, g.BlockBytes)
	if err != nil {
		return nil, err
	}
	tail, err := w.blocks.WriteZeroes(w.ctx, last.Length)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(data)
	d := &Disk{
		Name: w.source.Name, Bytes: g.Bytes, BlockBytes: g.BlockBytes, Object: id, Zero: zero, ZeroTail: tail,
		Digest: "sha256:" + hex.EncodeToString(sum[:]), Identity: w.source.Identity, Change: w.source.Change,
		FullReason: w.plan.full, Stats: w.stats,
	}
	if w.plan.isIncremental() {
		d.Parent, d.Base = w.plan.previousID, w.plan.previous.Change
	}
	return d, nil
}
