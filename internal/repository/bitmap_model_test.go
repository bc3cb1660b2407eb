package repository

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/repository/engine"
)

// The disks of a machine are backed up to several repositories. Bitmaps are added, removed, renamed, and added again under names
// that no restore point has. Backups fail, are killed between any two blobs, or name the wrong base or a name that is taken. The
// storage fails while they are planned and while they are published. Restore points are deleted and freed. Repositories are
// copied, replaced by older copies, and deleted and made again. Each disk of a restore point is incremental if its base exists,
// and full for the right reason otherwise, and all restore points hold what the disks held. A name is never given to a second
// moment while a restore point, or a copy of one, has it, because nothing could distinguish them.
func TestBase_randomHistoriesOfBitmaps(t *testing.T) {
	t.Parallel()
	places := 2
	if soak {
		places = 3
	}
	w := newModelWorld(t, places)
	rapid.Check(t, func(rt *rapid.T) {
		m := newBitmapModel(rt, w)
		defer m.end()
		rt.Repeat(map[string]func(*rapid.T){
			"write": m.write, "back up": m.backUp, "back up once more": m.backUp, "back up again": m.backUp, "back up more": m.backUp, "back up yet more": m.backUp, "remove a bitmap": m.removeBitmap,
			"rename a bitmap": m.renameBitmap, "add a bitmap": m.addBitmap, "replace a disk": m.replace,
			"delete a restore point": m.delete, "maintain": m.maintain, "keep a copy": m.keepCopy, "put a repository in its place": m.replaceRepository,
		})
		for _, p := range m.places {
			m.look(rt, p, nil)
		}
	})
	t.Logf("%v", w.did)
}

// modelDisk is a disk with bitmaps. Reading it may fail in the middle.
type modelDisk struct {
	bitmapDisk
	identity int
	broken   atomic.Bool
}

func newModelDisk(size int) *modelDisk {
	return &modelDisk{bitmapDisk: bitmapDisk{data: make([]byte, size), bitmaps: map[string]extent.Set{}}}
}

func (d *modelDisk) ReadAt(ctx context.Context, p []byte, offset int64) error {
	if d.broken.Load() && d.reads.Load()%3 == 2 {
		return errors.New("the source broke")
	}
	return d.bitmapDisk.ReadAt(ctx, p, offset)
}

type bitmapModel struct {
	*modelWorld

	copies  []modelCopy
	sources []Source
	disks   map[string]*modelDisk
	random  *rand.Rand
	names   int
	second  int64
}

func newBitmapModel(rt *rapid.T, w *modelWorld) *bitmapModel {
	m := &bitmapModel{modelWorld: w, random: rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 7))}
	for i := range 4 { // One source is backed up more often, so that it has a history in each place.
		m.sources = append(m.sources, Source{Host: "host", User: "varve", Path: fmt.Sprint("/bitmaps-", i/3)})
	}
	m.disks = map[string]*modelDisk{"root": newModelDisk(3 * mib), "data": newModelDisk(2*mib + 512)}
	for i, p := range m.places {
		p.become(m.empty[i])
	}
	return m
}

func (m *bitmapModel) disk(rt *rapid.T) (string, *modelDisk) {
	name := rapid.SampledFrom([]string{"root", "data"}).Draw(rt, "disk")
	return name, m.disks[name]
}

func (m *bitmapModel) fresh() string {
	m.names++
	return fmt.Sprint("name-", m.names)
}

// taken says whether a restore point in a repository, or in a copy of one, has the name.
func (m *bitmapModel) taken(name string) bool {
	has := func(p *heldPoint) bool {
		return slices.ContainsFunc(p.Disks, func(d Disk) bool { return d.Change == name })
	}
	return slices.ContainsFunc(m.places, func(p *modelPlace) bool { return slices.ContainsFunc(p.points, has) }) ||
		slices.ContainsFunc(m.copies, func(c modelCopy) bool { return slices.ContainsFunc(c.points, has) })
}

func (m *bitmapModel) write(rt *rapid.T) {
	_, d := m.disk(rt)
	at := rapid.Int64Range(0, int64(len(d.data))-1).Draw(rt, "at")
	e := extent.Extent{Offset: at, Length: min(int64(len(d.data))-at, 70*kib)}
	for i := e.Offset; i < e.End(); i++ {
		d.data[i] = byte(m.random.Uint32())
	}
	for name, set := range d.bitmaps {
		d.bitmaps[name] = set.Union(extent.NewSet(e))
	}
}

// bitmap picks a bitmap of the disk; "" if it has none.
func (m *bitmapModel) bitmap(rt *rapid.T, d *modelDisk) string {
	names := slices.Sorted(maps.Keys(d.bitmaps))
	if len(names) == 0 {
		return ""
	}
	return rapid.SampledFrom(names).Draw(rt, "bitmap")
}

func (m *bitmapModel) removeBitmap(rt *rapid.T) {
	_, d := m.disk(rt)
	delete(d.bitmaps, m.bitmap(rt, d))
}

// renameBitmap copies a bitmap. Under its new name it counts from a moment that no restore point of that name has.
func (m *bitmapModel) renameBitmap(rt *rapid.T) {
	_, d := m.disk(rt)
	if name := m.bitmap(rt, d); name != "" {
		d.bitmaps[m.fresh()] = d.bitmaps[name]
		delete(d.bitmaps, name)
	}
}

// addBitmap adds a bitmap under a new name, or again under a name that no restore point has, or no longer has.
func (m *bitmapModel) addBitmap(rt *rapid.T) {
	_, d := m.disk(rt)
	name := m.fresh()
	if old := m.bitmap(rt, d); old != "" && !m.taken(old) && rapid.Bool().Draw(rt, "again") {
		name = old
	}
	d.add(name)
}

func (m *bitmapModel) replace(rt *rapid.T) {
	_, d := m.disk(rt)
	d.identity++
	_, _ = rand.NewChaCha8([32]byte{byte(d.identity)}).Read(d.data)
}

// request returns a request that a script may make for a repository, with the right base or a wrong one.
func (m *bitmapModel) request(rt *rapid.T, at *modelPlace) Request {
	m.second++
	q := Request{Source: rapid.SampledFrom(m.sources).Draw(rt, "source"), Time: time.Unix(m.second, 0), BlockBytes: 256 * kib, Workers: 2}
	if rapid.Bool().Draw(rt, "with an ID") {
		q.ID = engine.NewPointID()
	}
	change := m.fresh()
	if len(at.points) > 0 && rapid.IntRange(0, 9).Draw(rt, "reuse") == 0 {
		change = at.points[rapid.IntRange(0, len(at.points)-1).Draw(rt, "of")].Disks[0].Change
	}
	for _, name := range rapid.SampledFrom([][]string{{"root"}, {"data"}, {"root", "data"}, {"root", "data"}}).Draw(rt, "disks") {
		d := m.disks[name]
		source := DiskSource{Name: name, Bytes: int64(len(d.data)), Reader: d, Identity: fmt.Sprint(d.identity), Change: change}
		since := ""
		if p := at.latest(q.Source, name); p != nil {
			since = p.disk(name).Change
		}
		if rapid.IntRange(0, 3).Draw(rt, "any base") == 0 {
			since = m.bitmap(rt, d)
		}
		if set, ok := d.bitmaps[since]; ok {
			source.Changes = &Changes{Since: since, Set: set}
		}
		if !m.taken(change) {
			d.add(change)
		}
		q.Disks = append(q.Disks, source)
	}
	switch all := m.place(rt).points; rapid.IntRange(0, 8).Draw(rt, "parent") {
	case 0:
		q.Parent = ParentNone
	case 1: // one of this history, or one of another place
		if len(all) > 0 {
			if p := all[rapid.IntRange(0, len(all)-1).Draw(rt, "parent of")]; p.Source == q.Source {
				q.Parent = p.ID
			}
		}
	}
	return q
}

// expected returns what a backup must say in a repository with these restore points: an error's class, or why each disk is full.
func expected(q *Request, points []*heldPoint) (full map[string]FullReason, class error) {
	var parent *heldPoint
	for _, p := range points {
		if p.Source != q.Source {
			continue
		}
		for _, d := range q.Disks {
			if o := p.disk(d.Name); o != nil && o.Change == d.Change {
				return nil, ErrChangeUsed
			}
			if q.Parent == "" && p.disk(d.Name) != nil {
				parent = p
			}
		}
		if q.Parent == p.ID {
			parent = p
		}
	}
	if parent == nil && q.Parent != "" && q.Parent != ParentNone {
		return nil, errclass.NotFound
	}
	full = map[string]FullReason{}
	for _, d := range q.Disks {
		full[d.Name] = d.expected(q.Parent, parent)
	}
	return full, nil
}

func (d *DiskSource) expected(asked string, parent *heldPoint) FullReason {
	var base *Disk
	if parent != nil {
		base = parent.disk(d.Name)
	}
	switch {
	case asked == ParentNone:
		return FullAsked
	case base == nil:
		return FullNoParent
	case base.Identity != d.Identity:
		return FullOtherIdentity
	case d.Changes == nil:
		return FullNoChanges
	case cmp.Or(d.Changes.Since, "none") != base.Change:
		return FullOtherBase
	}
	return ""
}
