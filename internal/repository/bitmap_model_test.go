package repository

import (
	"bytes"
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

	"github.com/varvebackup/varve/internal/extent"
)

// Bitmaps are added, removed, renamed and added again under names that no restore point has; backups fail, end in the middle, name the wrong base or a
// name that is taken; the storage fails; restore points go. Whatever is published holds what the disks held. A name is never given to a second moment while
// a restore point has it: nothing could tell these apart.
func TestBase_randomHistoriesOfBitmaps(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	r := s.opened(t, s.connect(t, "machine", false))
	var histories atomic.Int64
	rapid.Check(t, func(rt *rapid.T) {
		m := &bitmapModel{site: s, r: r, random: rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 7))}
		for range 2 {
			m.sources = append(m.sources, Source{Host: "host", User: "varve", Path: fmt.Sprintf("/bitmaps-%d", histories.Add(1))})
		}
		m.disks = map[string]*modelDisk{"root": newModelDisk(3 * mib), "data": newModelDisk(2*mib + 512)}
		rt.Repeat(map[string]func(*rapid.T){
			"write": m.write, "back up": m.backUp, "back up once more": m.backUp, "remove a bitmap": m.removeBitmap, "rename a bitmap": m.renameBitmap,
			"add a bitmap": m.addBitmap, "replace a disk": m.replace, "delete a restore point": m.delete,
		})
	})
}

// modelDisk is a disk with bitmaps, which may fail in the middle.
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
	site    *site
	r       *Repository
	sources []Source
	disks   map[string]*modelDisk
	random  *rand.Rand
	points  []*RestorePoint
	names   int
	second  int64
}

func (m *bitmapModel) disk(rt *rapid.T) (string, *modelDisk) {
	name := rapid.SampledFrom([]string{"root", "data"}).Draw(rt, "disk")
	return name, m.disks[name]
}

func (m *bitmapModel) fresh() string {
	m.names++
	return fmt.Sprint("name-", m.names)
}

// taken says whether a restore point has the name.
func (m *bitmapModel) taken(name string) bool {
	return slices.ContainsFunc(m.points, func(p *RestorePoint) bool {
		return slices.ContainsFunc(p.Disks, func(d Disk) bool { return d.Change == name })
	})
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

// bitmap is one that the disk has, or "".
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

// renameBitmap copies a bitmap: under a new name, it counts from a moment that no restore point of that name has.
func (m *bitmapModel) renameBitmap(rt *rapid.T) {
	_, d := m.disk(rt)
	if name := m.bitmap(rt, d); name != "" {
		d.bitmaps[m.fresh()] = d.bitmaps[name]
		delete(d.bitmaps, name)
	}
}

// addBitmap adds a new one, or one again that no restore point has, or has any more.
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

func (m *bitmapModel) delete(rt *rapid.T) {
	if len(m.points) == 0 {
		return
	}
	i := rapid.IntRange(0, len(m.points)-1).Draw(rt, "restore point")
	if err := m.r.Delete(context.Background(), m.points[i].ID); err != nil {
		rt.Fatal(err)
	}
	m.points = slices.Delete(m.points, i, i+1)
}

// request is one that a script may make: with the right base, or a wrong one.
func (m *bitmapModel) request(rt *rapid.T) (q Request, reused bool) {
	m.second++
	q = Request{Source: rapid.SampledFrom(m.sources).Draw(rt, "source"), Time: time.Unix(m.second, 0), BlockBytes: 256 * kib, Workers: 2}
	change := m.fresh()
	if len(m.points) > 0 && rapid.IntRange(0, 9).Draw(rt, "reuse") == 0 {
		change = rapid.SampledFrom(m.points).Draw(rt, "of").Disks[0].Change
	}
	last := func(name string) (since string) {
		for _, p := range m.points {
			if d, err := p.Disk(name); err == nil && p.Source == q.Source {
				since = d.Change
				reused = reused || d.Change == change
			}
		}
		return since
	}
	for _, name := range rapid.SampledFrom([][]string{{"root"}, {"data"}, {"root", "data"}}).Draw(rt, "disks") {
		d := m.disks[name]
		source := DiskSource{Name: name, Bytes: int64(len(d.data)), Reader: d, Identity: fmt.Sprint(d.identity), Change: change}
		since := last(name)
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
	if len(m.points) > 0 && rapid.IntRange(0, 5).Draw(rt, "explicit") == 0 {
		if p := rapid.SampledFrom(m.points).Draw(rt, "parent"); p.Source == q.Source {
			q.Parent = p.ID
		}
	}
	return q, reused
}

func (m *bitmapModel) backUp(rt *rapid.T) {
	q, reused := m.request(rt)
	trouble := rapid.SampledFrom([]string{"", "", "", "source", "storage"}).Draw(rt, "trouble")
	for _, d := range m.disks {
		d.broken.Store(trouble == "source")
	}
	if trouble == "storage" {
		m.site.failWhenRead("q", rapid.Int64Range(0, 6).Draw(rt, "reads"))
	}
	p, err := m.r.Backup(context.Background(), q)
	m.site.failing.Store(nil)
	switch {
	case reused && err == nil:
		rt.Fatalf("a name that a restore point has was taken: %+v", q.Disks)
	case reused && trouble == "" && !errors.Is(err, ErrChangeUsed), err != nil && trouble == "" && !reused:
		rt.Fatal(err)
	case err != nil:
		return
	}
	m.points = append(m.points, p)
	for i := range p.Disks {
		m.compare(rt, p, &p.Disks[i])
	}
}

func (m *bitmapModel) compare(rt *rapid.T, p *RestorePoint, d *Disk) {
	image, err := m.r.Image(context.Background(), *d)
	if err != nil {
		rt.Fatal(err)
	}
	got := make([]byte, d.Bytes)
	if err := image.ReadAt(context.Background(), got, 0); err != nil {
		rt.Fatal(err)
	}
	if !bytes.Equal(got, m.disks[d.Name].data) {
		rt.Fatalf("disk %s of restore point %s of %s differs (full: %q, parent %q, base %q)", d.Name, p.ID, p.Source, d.FullReason, d.Parent, d.Base)
	}
}
