package verify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/object"
	"golang.org/x/sync/errgroup"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/reporter"
	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/internal/repository/table"
)

// Options are for Verify.
type Options struct {
	// Percent of the stored contents are read, decrypted and hashed again. Every table is read in any case, and every block's
	// place is checked. 0 to 100.
	Percent float64
	// Sample selects which contents these are; the same number selects the same ones. If it is drawn at random for each
	// verification, every content is read sooner or later.
	Sample  uint64
	Workers int
	// Points selects the restore points whose disks are checked; nil: all. It does not narrow what Percent selects.
	Points func(*engine.RestorePoint) bool
	// Progress is called with the contents and bytes read so far. It may be nil.
	Progress func(contents, bytes int64)
	// Looked is called with how many bytes of all restore points' disks had their blocks looked up so far, and of how many: first
	// before any was, and then when it has returned. It may be nil.
	//
	// Both are called from one goroutine at a time, with no lock held, and delay nothing else.
	Looked func(bytes, of int64)
}

// reportedBytes are the arguments of Options.Progress and Options.Looked.
type reportedBytes struct{ first, second int64 }

// newReporter returns a reporter for a callback, which may be nil.
func newReporter(call func(first, second int64)) *reporter.Reporter[reportedBytes] {
	if call == nil {
		return reporter.New[reportedBytes](nil)
	}
	return reporter.New(func(r reportedBytes) { call(r.first, r.second) })
}

// Report is what Verify found.
type Report struct {
	// Points are the restore points that were checked: all that can be listed and that Options.Points selects.
	Points []*engine.RestorePoint
	// Contents is how many contents were read, and Bytes their size.
	Contents int64
	Bytes    int64
	Damage   []Damage
	// Unlisted is damage that belongs to no disk: restore points that are lost or whose description cannot be read, indexes, the
	// format.
	Unlisted error
	// Unrecorded says why later backups may still take for stored what is in packs that were found to have other bytes than were written:
	// their names could not be stored, or the connection is read-only. It is nil if there are none.
	Unrecorded error

	// rotten holds the contents that have other bytes than were written, by their packs.
	rotten map[blob.ID][]content.ID
}

// Damaged says whether anything is wrong.
func (r *Report) Damaged() bool { return len(r.Damage) > 0 || r.Unlisted != nil }

// Run reads what is stored in a repository, bypassing all caches, and reports which restore points are damaged, and where. The
// error says what kept it from looking.
func Run(ctx context.Context, a *engine.Access, o Options) (*Report, error) {
	if o.Percent < 0 || o.Percent > 100 {
		return nil, fmt.Errorf("%w: %v percent", errclass.Invalid, o.Percent)
	}
	if o.Workers <= 0 {
		o.Workers = table.DefaultWorkers
	}
	i, err := Inspect(ctx, a)
	if err != nil {
		return nil, err
	}
	report, err := CheckConnection(ctx, i.Connection, o)
	if err == nil {
		report.Unrecorded = i.RecordDamage(ctx, report)
	}
	if err := errors.Join(err, i.Close(ctx)); err != nil {
		return nil, err
	}
	report.Unlisted = errors.Join(i.Damage(), report.Unlisted)
	return report, nil
}

// CheckConnection looks for damage through a connection that reads from the storage.
func CheckConnection(ctx context.Context, r *engine.Connection, o Options) (*Report, error) {
	report := &Report{}
	bad := map[content.ID]error{}
	var err error
	if o.Percent > 0 {
		if bad, err = readContents(ctx, r, o, report); err != nil {
			return nil, err
		}
	}
	// Reading may have taken hours. What exists now counts, and lost reads the indexes again.
	lost, _, err := r.FindLost(ctx)
	if err != nil && !errors.Is(err, errclass.Corrupt) {
		return nil, err
	}
	points, err := readPointDirectories(ctx, r, o.Points)
	if err != nil && !errors.Is(err, errclass.Corrupt) {
		return nil, err
	}
	var records error
	if o.Points == nil {
		records = r.CheckRecords(ctx)
	}
	if records != nil && !errors.Is(records, errclass.Corrupt) {
		return nil, records
	}
	report.Unlisted = errors.Join(err, engine.LostError(lost), records)
	report.Points = points
	v := &tableCheck{r: r.Reader(), rehash: r.Rehasher(), bad: bad, refresh: r.Kopia.Refresh, known: map[object.ID]*regionDamage{}, gone: map[blob.ID]bool{}, rotten: map[blob.ID][]content.ID{}, verdicts: map[content.ID]error{}}
	if v.packs, err = engine.ListPacks(ctx, r.Kopia.BlobReader()); err != nil {
		return nil, err
	}
	for _, p := range report.Points {
		v.of += p.DiskBytes()
	}
	v.reports = newReporter(o.Looked)
	defer v.reports.Stop()
	v.countChecked(0)
	v.reports.Flush(ctx)
	trees := newFilesCheck(v)
	for _, p := range report.Points {
		damage, err := checkPoint(ctx, v, trees, p)
		if err != nil {
			return nil, fmt.Errorf("restore point %s: %w", p.ID, err)
		}
		for _, x := range damage {
			x.Point = p
			report.Damage = append(report.Damage, x)
		}
	}
	if err := v.checkUnreferenced(ctx, bad); err != nil {
		return nil, err
	}
	report.rotten = v.rotten
	return report, nil
}

// checkUnreferenced gives verdicts on contents that could not be read and that none of the restore points has: a later
// backup may find them.
func (v *tableCheck) checkUnreferenced(ctx context.Context, bad map[content.ID]error) error {
	for id, read := range bad {
		if v.verdicts[id] != nil {
			continue
		}
		if err := v.checkContent(ctx, id, read); err != nil && !errors.Is(err, errclass.Corrupt) {
			return err
		}
	}
	return nil
}

// checkPoint returns what cannot be restored of a restore point.
func checkPoint(ctx context.Context, v *tableCheck, trees *filesCheck, p *engine.RestorePoint) (out []Damage, err error) {
	if out, err = v.checkDefinition(ctx, p); err != nil {
		return nil, err
	}
	if p.Files != nil {
		damage, err := trees.checkFiles(ctx, p.Files)
		return append(out, damage...), err
	}
	for _, d := range p.Disks {
		damage, err := v.checkDisk(ctx, d)
		if err != nil {
			return nil, err
		}
		out = append(out, damage...)
	}
	return out, nil
}

// readPointDirectories returns the restore points that wanted selects, as their directories describe them. The error holds those
// that are damaged.
func readPointDirectories(ctx context.Context, r *engine.Connection, wanted func(*engine.RestorePoint) bool) ([]*engine.RestorePoint, error) {
	snapshots, err := r.FindPoints(ctx, nil, "")
	if err != nil && !errors.Is(err, errclass.Corrupt) {
		return nil, err
	}
	if wanted != nil {
		snapshots = slices.DeleteFunc(snapshots, func(s *engine.StoredPoint) bool {
			f, ok := s.Summary()
			return ok && !wanted(s.Point(f))
		})
	}
	points, bad := engine.ReadPoints(ctx, r.Reader(), snapshots, engine.ReadPointDirectory)
	if wanted != nil {
		points = slices.DeleteFunc(points, func(p *engine.RestorePoint) bool { return !wanted(p) })
	}
	slices.SortFunc(points, func(a, b *engine.RestorePoint) int { return a.Time.Compare(b.Time) })
	return points, errors.Join(err, bad)
}

// tableCheck remembers what was found so far, so that nothing is checked twice.
type tableCheck struct {
	r      table.ContentReader
	rehash func(content.ID, []byte) error
	bad    map[content.ID]error
	packs  *engine.PackList
	// refresh reads the indexes again.
	refresh func(context.Context) error

	mu sync.Mutex
	// known holds the tables of regions that were checked, with what is wrong with them, or nil.
	known map[object.ID]*regionDamage
	// generation counts how often the indexes were read again. gone holds the blobs whose absence was the reason for that.
	generation int
	gone       map[blob.ID]bool
	// rotten holds the contents that were read twice and have other bytes than were written, by their packs. verdicts says what is
	// wrong with each of them.
	rotten   map[blob.ID][]content.ID
	verdicts map[content.ID]error
	// bytes is how much of all disks was checked so far, and of is their size.
	bytes, of int64
	reports   *reporter.Reporter[reportedBytes]
}

// checkDisk returns what cannot be restored of a disk.
func (v *tableCheck) checkDisk(ctx context.Context, d engine.Disk) ([]Damage, error) {
	g, err := table.NewGeometry(d.Bytes, d.BlockBytes)
	if err != nil {
		return nil, err
	}
	list, err := table.ReadList(ctx, v.r, g, d.Object)
	if errors.Is(err, errclass.Corrupt) {
		if err := v.noteTable(ctx, d.Object); err != nil {
			return nil, err
		}
		v.countChecked(d.Bytes)
		return []Damage{{Disk: d.Name, Err: err}}, nil
	}
	if err != nil {
		return nil, err
	}
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(table.DefaultWorkers)
	queued := map[object.ID]bool{}
	for i, e := range list {
		if v.isKnown(e.Object) || queued[e.Object] {
			v.countChecked(g.Region(i).Length)
			continue
		}
		queued[e.Object] = true
		group.Go(func() error {
			damage, err := v.checkRegion(inner, g, i, e.Object)
			if err != nil {
				return err
			}
			v.countChecked(g.Region(i).Length)
			v.mu.Lock()
			defer v.mu.Unlock()
			v.known[e.Object] = damage
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	out := damageList{disk: d.Name}
	for i, e := range list {
		k := v.known[e.Object]
		if k == nil {
			continue
		}
		if k.table != nil {
			out.addDamage(g.Region(i), k.table, true)
		}
		for _, b := range k.blocks {
			out.addDamage(g.Block(i, b.block), b.err, false)
		}
	}
	return out.all, nil
}

// currentGeneration returns the generation of the indexes.
func (v *tableCheck) currentGeneration() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.generation
}

// isGone says whether a blob is missing although the indexes of a generation name it. If not, what was looked up in them must be
// looked up again, because maintenance may have moved it.
func (v *tableCheck) isGone(ctx context.Context, id blob.ID, generation int) (bool, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case v.generation != generation:
		return false, nil
	case v.gone[id]:
		return true, nil
	}
	if err := v.refresh(ctx); err != nil {
		return false, fmt.Errorf("read the indexes again: %w", err)
	}
	v.generation++
	v.gone[id] = true
	return false, nil
}

// countChecked reports that this many more bytes were checked.
func (v *tableCheck) countChecked(bytes int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.bytes += bytes
	v.reports.Report(reportedBytes{v.bytes, v.of})
}

func (v *tableCheck) isKnown(id object.ID) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	_, ok := v.known[id]
	return ok
}

// checkRegion says what is wrong with a region; nil if nothing is.
func (v *tableCheck) checkRegion(ctx context.Context, g table.Geometry, i int, id object.ID) (*regionDamage, error) {
	entries, err := table.ReadRegion(ctx, v.r, g, i, id)
	if errors.Is(err, errclass.Corrupt) {
		return &regionDamage{table: v.explainTableError(ctx, id, err)}, nil
	}
	if err != nil {
		return nil, err
	}
	var out regionDamage
	var last error
	for j, e := range entries {
		if j == 0 || e.Object != entries[j-1].Object {
			if last = v.checkBlock(ctx, e.Object); last != nil && !errors.Is(last, errclass.Corrupt) {
				return nil, last
			}
		}
		if last != nil {
			out.blocks = append(out.blocks, blockDamage{block: j, err: last})
		}
	}
	if out.blocks == nil {
		return nil, nil
	}
	return &out, nil
}

// explainTableError returns what is wrong with a table that could not be read because of err.
func (v *tableCheck) explainTableError(ctx context.Context, id object.ID, err error) error {
	if inner, ok := id.IndexObjectID(); ok {
		if cid, _, ok := inner.ContentID(); ok {
			_, read := v.r.GetContent(ctx, cid)
			if found := v.checkContent(ctx, cid, read); errors.Is(found, errclass.Corrupt) {
				err = found
			}
		}
	}
	return &damageError{text: fmt.Sprintf("the table of blocks: %s", err), err: err}
}

// checkBlock says what is wrong with a block.
func (v *tableCheck) checkBlock(ctx context.Context, id object.ID) error {
	cid, _, ok := id.ContentID()
	if !ok {
		return &damageError{text: fmt.Sprintf("%s is not a block", id)}
	}
	return v.checkContent(ctx, cid, v.bad[cid])
}

// checkContent says what is wrong with a content: its place in the storage is missing, or it cannot be read. read is what was wrong
// when it was read before.
func (v *tableCheck) checkContent(ctx context.Context, id content.ID, read error) error {
	for {
		generation := v.currentGeneration()
		info, err := v.r.ContentInfo(ctx, id)
		if table.IsMissing(err) {
			return &damageError{text: fmt.Sprintf("no index has content %s", id), err: err}
		}
		if err != nil {
			return fmt.Errorf("look up content %s: %w", id, err)
		}
		there, err := v.packs.HoldsContent(ctx, info)
		switch {
		case err != nil:
			return err
		case there && read == nil:
			return nil
		case there:
			return v.rereadContent(ctx, info)
		}
		if lacks, err := v.isGone(ctx, info.PackBlobID, generation); err != nil {
			return err
		} else if lacks {
			return &damageError{text: fmt.Sprintf("blob %s is missing or too short", info.PackBlobID), err: read}
		}
	}
}

// rereadContent says what is wrong with a content that could not be read before. Maintenance may have moved it at that moment.
func (v *tableCheck) rereadContent(ctx context.Context, info content.Info) error {
	v.mu.Lock()
	verdict := v.verdicts[info.ContentID]
	v.mu.Unlock()
	if verdict != nil {
		return verdict
	}
	data, err := v.r.GetContent(ctx, info.ContentID)
	err = checkContentHash(v.rehash, info.ContentID, data, err)
	if errors.Is(err, errclass.Corrupt) {
		err = &damageError{text: fmt.Sprintf("blob %s has other bytes than were written", info.PackBlobID), err: err}
		v.noteRotten(info, err)
	}
	return err
}
