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
)

// disk stores one disk. If the parent turns out to be damaged, or to be of another disk, the whole disk is read instead.
func (s *session) disk(d *DiskSource, parent *RestorePoint) (*diskWriter, error) {
	plan, err := planDisk(d, parent, s.doubts[d.Name], s.q.BlockBytes)
	if err != nil {
		return nil, err
	}
	out, err := s.attempt(d, plan)
	if full := readAgain(err); full != "" {
		plan.full = full
		out, err = s.attempt(d, plan)
	}
	return out, err
}

// diskWriter is one pass over a disk.
type diskWriter struct {
	*session
	source *DiskSource
	plan   diskPlan
	// work is what the session manifest names, list holds the regions, and done describes the disk once it is stored.
	work   *diskWork
	list   []object.IndirectObjectEntry
	done   *Disk
	blocks *blockWriter
	before predecessor
	// parentImage holds the parent's tables while the disk is compared with it.
	parentImage *Image
	buffers     sync.Pool
	// turn is held by the region that is handing out its blocks, each to one of the slots. So blocks enter the packs in about the
	// order of the disk, which is the order in which they are restored.
	turn  sync.Mutex
	slots chan struct{}

	mu    sync.Mutex
	stats Stats
	// zeroRegions holds the tables of regions without data, by the region's length.
	zeroRegions map[int64]object.ID
}

func (s *session) attempt(d *DiskSource, plan diskPlan) (*diskWriter, error) {
	s.progress.begin(d, plan)
	g := plan.geometry
	w := &diskWriter{session: s, source: d, plan: plan, work: s.work.disk(g)}
	w.forgetZeroes()
	w.slots = make(chan struct{}, s.q.Workers)
	w.buffers.New = func() any { b := make([]byte, g.block); return &b }
	var err error
	if w.before, err = w.loadPredecessor(); err != nil {
		return nil, err
	}
	if err := w.sameDisk(); err != nil {
		return nil, err
	}
	if err := w.regions(); err != nil {
		return nil, err
	}
	if plan.incremental() {
		if err := s.verifyClones(g, w.list, plan.previousID); err != nil {
			return nil, err
		}
	}
	w.done, err = w.finish()
	return w, err
}

// forgetZeroes makes zero blocks and empty regions be stored again when they are next needed.
func (w *diskWriter) forgetZeroes() {
	w.blocks = newBlockWriter(w.w, w.plan.geometry, compressors[w.q.Compression])
	w.zeroRegions = map[int64]object.ID{}
}

// regions settles all regions, several in parallel.
func (w *diskWriter) regions() error {
	g := w.plan.geometry
	w.list = make([]object.IndirectObjectEntry, g.regions())
	group, ctx := errgroup.WithContext(w.ctx)
	group.SetLimit(w.q.Workers)
	for i := range w.list {
		if ctx.Err() != nil {
			break
		}
		e := g.region(i)
		w.list[i] = object.IndirectObjectEntry{Start: e.Offset, Length: e.Length}
		if w.unchanged(i, e) {
			w.list[i].Object = w.before.list[i].Object
			w.progress.add(Progress{ScannedBytes: e.Length})
			continue
		}
		group.Go(func() error { return w.settleRegion(ctx, i) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return w.ctx.Err()
}

// settleRegion stores region i and notes it in the list.
func (w *diskWriter) settleRegion(ctx context.Context, i int) error {
	e, began := w.plan.geometry.region(i), w.w.Time()
	id, err := w.region(ctx, i, e, &began)
	if err != nil {
		return fmt.Errorf("bytes %s: %w", e, err)
	}
	w.list[i].Object = id
	w.session.work.region(w.work, w.list[i], began)
	return nil
}

// storeAgain stores again what is gone of the disk, if anything is.
func (w *diskWriter) storeAgain() error {
	regions, any := w.session.work.takeBroken(w.work)
	if !any {
		return nil
	}
	w.forgetZeroes()
	stats := w.stats
	for _, i := range regions {
		if err := w.settleRegion(w.ctx, i); err != nil {
			return err
		}
	}
	w.stats = stats
	var err error
	w.done, err = w.finish()
	return err
}

// unchanged says whether region i, which is e, is the same as in the parent.
func (w *diskWriter) unchanged(i int, e extent.Extent) bool {
	return w.plan.incremental() && w.before.has(i, e) && !w.source.Changes.Set.Overlaps(e)
}

// hole says whether e is known to be zero without reading it.
func (w *diskWriter) hole(e extent.Extent) bool {
	return w.source.Data != nil && !w.source.Data.Overlaps(e)
}

// region stores region i, which is e, and returns its table's ID. It moves began to the time at which it starts to store the
// table.
func (w *diskWriter) region(ctx context.Context, i int, e extent.Extent, began *time.Time) (object.ID, error) {
	if !w.plan.incremental() && w.hole(e) {
		id, err := w.zeroRegion(ctx, i, e.Length)
		if err != nil || !w.before.has(i, e) || w.before.list[i].Object == id {
			w.progress.add(Progress{ScannedBytes: e.Length})
			return id, err
		}
	}
	before, err := w.before.blocks(ctx, i)
	if err != nil {
		return object.EmptyID, err
	}
	r := regionWriter{diskWriter: w, entries: make([]object.IndirectObjectEntry, w.plan.geometry.blocks(i))}
	was := make([]object.ID, len(r.entries))
	for j := range r.entries {
		b := w.plan.geometry.blockOf(i, j)
		r.entries[j] = object.IndirectObjectEntry{Start: b.Offset - e.Offset, Length: b.Length}
		if j < len(before) && before[j].Length == b.Length {
			was[j] = before[j].Object
		}
	}
	if err := r.settle(ctx, i, was); err != nil {
		return object.EmptyID, err
	}
	w.count(r.did)
	w.progress.add(Progress{ScannedBytes: e.Length, ChangedBytes: r.did.ChangedBytes, DeduplicatedBytes: r.had})
	*began = w.w.Time()
	id, _, err := writeTable(ctx, w.w, r.entries, regionSplitter)
	return id, err
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

// settle finds an object for each block of region i. was holds the object that each block had in the parent, or EmptyID if it had
// none.
func (r *regionWriter) settle(ctx context.Context, i int, was []object.ID) error {
	group, inner := errgroup.WithContext(ctx)
	var kept []object.ID
	r.turn.Lock()
	for j := range r.entries {
		b := r.plan.geometry.blockOf(i, j)
		if was[j] != object.EmptyID && r.plan.incremental() && !r.source.Changes.Set.Overlaps(b) {
			r.entries[j].Object = was[j]
			kept = append(kept, was[j])
			continue
		}
		r.slots <- struct{}{}
		group.Go(func() error {
			defer func() { <-r.slots }()
			if inner.Err() != nil {
				return inner.Err()
			}
			return r.store(inner, i, &r.entries[j], b, was[j])
		})
	}
	r.turn.Unlock()
	group.Go(func() error { return r.before.keptAlive(inner, kept) })
	return group.Wait()
}

// store stores the block e of the disk, which is in region i, and notes it in entry. was is its object in the parent.
func (r *regionWriter) store(ctx context.Context, i int, entry *object.IndirectObjectEntry, e extent.Extent, was object.ID) (err error) {
	buffer, _ := r.buffers.Get().(*[]byte)
	defer r.buffers.Put(buffer)
	var did Stats
	var had int64
	var began time.Time
	if entry.Object, err = r.block(ctx, e, (*buffer)[:e.Length], &did, &began); err != nil {
		return err
	}
	r.session.work.block(r.diskWriter.work, i, *entry, began)
	if entry.Object != was && (was != object.EmptyID || !r.isHole(*entry)) {
		did.ChangedBytes += e.Length
		if r.hadBefore(ctx, entry.Object) {
			had = e.Length
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.did.add(did)
	r.had += had
	return nil
}

// block stores the bytes e of the disk, using buffer, which is as long. It sets began to the time at which it starts to store
// them.
func (w *diskWriter) block(ctx context.Context, e extent.Extent, buffer []byte, did *Stats, began *time.Time) (object.ID, error) {
	*began = w.w.Time()
	if w.hole(e) {
		return w.blocks.zero(ctx, e.Length)
	}
	if err := w.source.Reader.ReadAt(ctx, buffer, e.Offset); err != nil {
		return object.EmptyID, errReadSource(err)
	}
	*began = w.w.Time()
	did.ReadBytes += e.Length
	w.progress.add(Progress{ReadBytes: e.Length})
	if isZero(buffer) {
		did.ZeroBytes += e.Length
		return w.blocks.zero(ctx, e.Length)
	}
	return w.blocks.write(ctx, buffer)
}

func errReadSource(err error) error { return fmt.Errorf("read the source: %w", err) }

// isHole says whether a block that was just settled is all zeroes.
func (w *diskWriter) isHole(e object.IndirectObjectEntry) bool {
	w.blocks.mu.Lock()
	defer w.blocks.mu.Unlock()
	return w.blocks.zeros[e.Length] == e.Object
}

// zeroRegion returns the table of region i without data, and stores it on first use.
func (w *diskWriter) zeroRegion(ctx context.Context, i int, length int64) (object.ID, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if id, ok := w.zeroRegions[length]; ok {
		return id, nil
	}
	entries := make([]object.IndirectObjectEntry, w.plan.geometry.blocks(i))
	for j := range entries {
		b := w.plan.geometry.blockOf(i, j)
		id, err := w.blocks.zero(ctx, b.Length)
		if err != nil {
			return object.EmptyID, err
		}
		entries[j] = object.IndirectObjectEntry{Start: b.Offset - w.plan.geometry.region(i).Offset, Length: b.Length, Object: id}
	}
	id, _, err := writeTable(ctx, w.w, entries, regionSplitter)
	if err == nil {
		w.zeroRegions[length] = id
	}
	return id, err
}

func (w *diskWriter) count(d Stats) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stats.add(d)
}

func (s *Stats) add(o Stats) {
	s.ReadBytes += o.ReadBytes
	s.ZeroBytes += o.ZeroBytes
	s.ChangedBytes += o.ChangedBytes
}

// finish stores the list of regions and describes the disk.
func (w *diskWriter) finish() (*Disk, error) {
	began := w.w.Time()
	id, data, err := writeTable(w.ctx, w.w, w.list, listSplitter)
	if err != nil {
		return nil, err
	}
	w.session.work.list(w.work, id, began)
	g := w.plan.geometry
	last := g.blockOf(g.regions()-1, g.blocks(g.regions()-1)-1)
	zero, err := w.blocks.zero(w.ctx, g.block)
	if err != nil {
		return nil, err
	}
	tail, err := w.blocks.zero(w.ctx, last.Length)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(data)
	d := &Disk{
		Name: w.source.Name, Bytes: g.size, BlockBytes: g.block, Object: id, Zero: zero, ZeroTail: tail,
		Digest: "sha256:" + hex.EncodeToString(sum[:]), Identity: w.source.Identity, Change: w.source.Change,
		FullReason: w.plan.full, Stats: w.stats,
	}
	if w.plan.incremental() {
		d.Parent, d.Base = w.plan.previousID, w.plan.previous.Change
	}
	return d, nil
}
