package repository

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
)

// VerifyOptions are for Verify.
type VerifyOptions struct {
	// Percent of the stored contents are read, decrypted and hashed again. Every table is read in any case, and every block's
	// place is checked. 0 to 100.
	Percent float64
	// Sample selects which contents these are; the same number selects the same ones. If it is drawn at random for each
	// verification, every content is read sooner or later.
	Sample  uint64
	Workers int
	// Points selects the restore points whose disks are checked; nil: all. It does not narrow what Percent selects.
	Points func(*RestorePoint) bool
	// Progress is called with the contents and bytes read so far, from several goroutines. It may be nil.
	Progress func(contents, bytes int64)
	// Looked is called with how many bytes of all restore points' disks had their blocks looked up so far, and of how many. It is
	// called from several goroutines, one at a time. It may be nil.
	Looked func(bytes, of int64)
}

// Report is what Verify found.
type Report struct {
	// Points are the restore points that were checked: all that can be listed and that VerifyOptions.Points selects.
	Points []*RestorePoint
	// Contents is how many contents were read, and Bytes their size.
	Contents int64
	Bytes    int64
	Damage   []Damage
	// Unlisted is damage that belongs to no disk: restore points that are lost or whose description cannot be read, indexes, the
	// format.
	Unlisted error
}

// Damaged says whether anything is wrong.
func (r *Report) Damaged() bool { return len(r.Damage) > 0 || r.Unlisted != nil }

// Verify reads what is stored, bypassing all caches, and reports which restore points are damaged, and where. The error says what
// kept it from looking.
func (r *Repository) Verify(ctx context.Context, o VerifyOptions) (*Report, error) {
	if o.Percent < 0 || o.Percent > 100 {
		return nil, fmt.Errorf("%w: %v percent", ErrInvalid, o.Percent)
	}
	if o.Workers <= 0 {
		o.Workers = DefaultWorkers
	}
	i, err := inspect(ctx, r.configFile, r.password)
	if err != nil {
		return nil, err
	}
	report, err := i.verify(ctx, o)
	if err := errors.Join(err, i.Close(ctx)); err != nil {
		return nil, err
	}
	report.Unlisted = errors.Join(i.damage(), report.Unlisted)
	return report, nil
}

// verify is Verify on a connection that reads from the storage.
func (r *Repository) verify(ctx context.Context, o VerifyOptions) (*Report, error) {
	report := &Report{}
	bad := map[content.ID]error{}
	var err error
	if o.Percent > 0 {
		if bad, err = r.readContents(ctx, o, report); err != nil {
			return nil, err
		}
	}
	// Reading may have taken hours. What exists now counts, and lost reads the indexes again.
	lost, _, err := r.lost(ctx)
	if err != nil && !errors.Is(err, ErrCorrupt) {
		return nil, err
	}
	points, err := r.wholePoints(ctx, o.Points)
	if err != nil && !errors.Is(err, ErrCorrupt) {
		return nil, err
	}
	var records error
	if o.Points == nil {
		records = r.badRecords(ctx)
	}
	if records != nil && !errors.Is(records, ErrCorrupt) {
		return nil, records
	}
	report.Unlisted = errors.Join(err, lostError(lost), records)
	report.Points = points
	v := &verification{r: r.reader(), rehash: r.rehash(), bad: bad, known: map[object.ID]*regionDamage{}, gone: map[blob.ID]bool{}, looked: o.Looked}
	if v.packs, err = listPacks(ctx, r.rep); err != nil {
		return nil, err
	}
	for _, p := range report.Points {
		v.of += p.DiskBytes()
	}
	for _, p := range report.Points {
		for _, d := range p.Disks {
			damage, err := v.disk(ctx, d)
			if err != nil {
				return nil, fmt.Errorf("restore point %s: %w", p.ID, err)
			}
			for _, x := range damage {
				x.Point = p
				report.Damage = append(report.Damage, x)
			}
		}
	}
	return report, nil
}

// wholePoints returns the restore points that wanted selects, as their directories describe them. The error holds those that are
// damaged.
func (r *Repository) wholePoints(ctx context.Context, wanted func(*RestorePoint) bool) ([]*RestorePoint, error) {
	snapshots, err := r.snapshots(ctx, nil, "")
	if err != nil && !errors.Is(err, ErrCorrupt) {
		return nil, err
	}
	if wanted != nil {
		snapshots = slices.DeleteFunc(snapshots, func(s *stored) bool {
			f, ok := s.summary()
			return ok && !wanted(s.point(f))
		})
	}
	points, bad := readPoints(ctx, r.reader(), snapshots, readWholePoint)
	if wanted != nil {
		points = slices.DeleteFunc(points, func(p *RestorePoint) bool { return !wanted(p) })
	}
	slices.SortFunc(points, func(a, b *RestorePoint) int { return a.Time.Compare(b.Time) })
	return points, errors.Join(err, bad)
}

// verification remembers what was found so far, so that nothing is checked twice.
type verification struct {
	r      contentReader
	rehash func(content.ID, []byte) error
	bad    map[content.ID]error
	packs  *packs

	mu sync.Mutex
	// known holds the tables of regions that were checked, with what is wrong with them, or nil.
	known map[object.ID]*regionDamage
	// generation counts how often the indexes were read again. gone holds the blobs whose absence was the reason for that.
	generation int
	gone       map[blob.ID]bool
	// bytes is how much of all disks was checked so far, and of is their size.
	bytes, of int64
	looked    func(bytes, of int64)
}

// disk returns what cannot be restored of a disk.
func (v *verification) disk(ctx context.Context, d Disk) ([]Damage, error) {
	g, err := newGeometry(d.Bytes, d.BlockBytes)
	if err != nil {
		return nil, err
	}
	list, err := readRegions(ctx, v.r, g, d.Object)
	if errors.Is(err, ErrCorrupt) {
		v.count(d.Bytes)
		return []Damage{{Disk: d.Name, Err: err}}, nil
	}
	if err != nil {
		return nil, err
	}
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(DefaultWorkers)
	queued := map[object.ID]bool{}
	for i, e := range list {
		if v.seen(e.Object) || queued[e.Object] {
			v.count(g.region(i).Length)
			continue
		}
		queued[e.Object] = true
		group.Go(func() error {
			damage, err := v.region(inner, g, i, e.Object)
			if err != nil {
				return err
			}
			v.count(g.region(i).Length)
			v.mu.Lock()
			defer v.mu.Unlock()
			v.known[e.Object] = damage
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	out := damages{disk: d.Name}
	for i, e := range list {
		k := v.known[e.Object]
		if k == nil {
			continue
		}
		if k.table != nil {
			out.add(g.region(i), k.table, true)
		}
		for _, b := range k.blocks {
			out.add(g.blockOf(i, b.block), b.err, false)
		}
	}
	return out.all, nil
}

// look returns the generation of the indexes.
func (v *verification) look() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.generation
}

// lacks says whether a blob is missing although the indexes of a generation name it. If not, what was looked up in them must be
// looked up again, because maintenance may have moved it.
func (v *verification) lacks(ctx context.Context, id blob.ID, generation int) (bool, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case v.generation != generation:
		return false, nil
	case v.gone[id]:
		return true, nil
	}
	if err := v.packs.rep.Refresh(ctx); err != nil {
		return false, fmt.Errorf("read the indexes again: %w", err)
	}
	v.generation++
	v.gone[id] = true
	return false, nil
}

// count reports that this many more bytes were checked.
func (v *verification) count(bytes int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.bytes += bytes
	if v.looked != nil {
		v.looked(v.bytes, v.of)
	}
}

func (v *verification) seen(id object.ID) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	_, ok := v.known[id]
	return ok
}

// region says what is wrong with a region; nil if nothing is.
func (v *verification) region(ctx context.Context, g geometry, i int, id object.ID) (*regionDamage, error) {
	entries, err := readBlocks(ctx, v.r, g, i, id)
	if errors.Is(err, ErrCorrupt) {
		return &regionDamage{table: v.tableError(ctx, id, err)}, nil
	}
	if err != nil {
		return nil, err
	}
	var out regionDamage
	var last error
	for j, e := range entries {
		if j == 0 || e.Object != entries[j-1].Object {
			if last = v.object(ctx, e.Object); last != nil && !errors.Is(last, ErrCorrupt) {
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

// tableError returns what is wrong with a table that could not be read because of err.
func (v *verification) tableError(ctx context.Context, id object.ID, err error) error {
	if inner, ok := id.IndexObjectID(); ok {
		if cid, _, ok := inner.ContentID(); ok {
			_, read := v.r.GetContent(ctx, cid)
			if found := v.content(ctx, cid, read); errors.Is(found, ErrCorrupt) {
				err = found
			}
		}
	}
	return &damageError{text: fmt.Sprintf("the table of blocks: %s", err), err: err}
}

// object says what is wrong with a block.
func (v *verification) object(ctx context.Context, id object.ID) error {
	cid, _, ok := id.ContentID()
	if !ok {
		return &damageError{text: fmt.Sprintf("%s is not a block", id)}
	}
	return v.content(ctx, cid, v.bad[cid])
}

// content says what is wrong with a content: its place in the storage is missing, or it cannot be read. read is what was wrong
// when it was read before.
func (v *verification) content(ctx context.Context, id content.ID, read error) error {
	for {
		generation := v.look()
		info, err := v.r.ContentInfo(ctx, id)
		if missing(err) {
			return &damageError{text: fmt.Sprintf("no index has content %s", id), err: err}
		}
		if err != nil {
			return fmt.Errorf("look up content %s: %w", id, err)
		}
		there, err := v.packs.holds(ctx, info)
		switch {
		case err != nil:
			return err
		case there && read == nil:
			return nil
		case there:
			return v.read(ctx, info)
		}
		if lacks, err := v.lacks(ctx, info.PackBlobID, generation); err != nil {
			return err
		} else if lacks {
			return &damageError{text: fmt.Sprintf("blob %s is missing or too short", info.PackBlobID), err: read}
		}
	}
}

// read says what is wrong with a content that could not be read before. Maintenance may have moved it at that moment.
func (v *verification) read(ctx context.Context, info content.Info) error {
	data, err := v.r.GetContent(ctx, info.ContentID)
	err = wholeContent(v.rehash, info.ContentID, data, err)
	if errors.Is(err, ErrCorrupt) {
		return &damageError{text: fmt.Sprintf("blob %s has other bytes than were written", info.PackBlobID), err: err}
	}
	return err
}
