package repository

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/test/verdict"
)

// memory is a disk in memory, and a source of backups that knows what changed.
type memory struct {
	data    []byte
	changed extent.Set
	point   int // the point in time that changed counts from
}

func (m *memory) ReadAt(_ context.Context, p []byte, offset int64) error {
	copy(p, m.data[offset:offset+int64(len(p))])
	return nil
}

func (m *memory) write(r *rand.Rand, e extent.Extent, zero bool) {
	if data := m.data[e.Offset:e.End()]; zero {
		clear(data)
	} else {
		var seed [32]byte
		binary.LittleEndian.PutUint64(seed[:], r.Uint64())
		_, _ = rand.NewChaCha8(seed).Read(data)
	}
	m.changed = m.changed.Union(extent.NewSet(e))
}

func (m *memory) source(known bool) DiskSource {
	d := DiskSource{Name: "root", Bytes: int64(len(m.data)), Reader: m, Identity: "a", Change: fmt.Sprint(m.point + 1)}
	if known {
		d.Changes = &Changes{Since: fmt.Sprint(m.point), Set: m.changed}
	}
	m.point++
	m.changed = extent.Set{}
	return d
}

// slowly is a disk that is slow to read, so that there is time to kill the reader.
type slowly struct{ *memory }

func (s slowly) ReadAt(ctx context.Context, p []byte, offset int64) error {
	time.Sleep(time.Millisecond)
	return s.memory.ReadAt(ctx, p, offset)
}

var testSource = Source{Host: "host", User: "varve", Path: "/vm"}

// Whatever happens to a disk, and whatever is deleted and cleaned up in between, each of its restore points gives back what the
// disk held.
func TestRestorePoints_areWhatTheDiskWas(t *testing.T) {
	t.Parallel()
	repository, _ := newRepository(t)
	var sources atomic.Int64
	rapid.Check(t, func(rt *rapid.T) {
		source := testSource
		source.Path = fmt.Sprintf("/vm-%d", sources.Add(1))
		m := &model{
			r: repository, source: source, want: map[string][]byte{}, definitions: map[string]string{},
			block: rapid.SampledFrom([]int64{256 * kib, mib}).Draw(rt, "block"),
		}
		m.disk.data = make([]byte, rapid.Int64Range(1, 3*m.block+m.block/2).Draw(rt, "bytes"))
		m.random = rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1))
		rt.Repeat(map[string]func(*rapid.T){
			"write": m.write, "resize": m.resize, "back up": m.backUp, "delete": m.delete, "maintain": m.maintain, "": m.check,
		})
	})
}

// model is a disk with what it held at each of its restore points.
type model struct {
	r      *Repository
	source Source
	block  int64
	disk   memory
	random *rand.Rand
	want   map[string][]byte
	// definitions are those of the restore points that have one.
	definitions map[string]string
	// generation is how many restore points were made.
	generation int
	checked    int
}

func (m *model) write(rt *rapid.T) {
	at := rapid.Int64Range(0, int64(len(m.disk.data))-1).Draw(rt, "at")
	n := min(int64(len(m.disk.data))-at, rapid.Int64Range(1, m.block).Draw(rt, "length"))
	m.disk.write(m.random, extent.Extent{Offset: at, Length: n}, rapid.Bool().Draw(rt, "zero"))
}

func (m *model) resize(rt *rapid.T) {
	resized := make([]byte, rapid.Int64Range(1, 3*m.block).Draw(rt, "to"))
	copy(resized, m.disk.data)
	m.disk.changed = m.disk.changed.Intersect(extent.NewSet(extent.Extent{Length: int64(len(resized))}))
	m.disk.data = resized
}

func (m *model) backUp(rt *rapid.T) {
	m.generation++
	definition := rapid.SampledFrom([]string{"", testDefinition, `{"vm":2}`}).Draw(rt, "definition")
	q := Request{
		Source: m.source, Time: time.Unix(int64(m.generation), 0), BlockBytes: m.block, Workers: 2,
		Disks: []DiskSource{m.disk.source(rapid.IntRange(0, 3).Draw(rt, "known") > 0)},
	}
	if definition != "" {
		q.Definition = []byte(definition)
	}
	p, err := m.r.Backup(context.Background(), q)
	if err != nil {
		rt.Fatal(err)
	}
	m.definitions[p.ID] = definition
	m.want[p.ID] = bytes.Clone(m.disk.data)
}

func (m *model) delete(rt *rapid.T) {
	if len(m.want) == 0 {
		return
	}
	id := rapid.SampledFrom(slices.Sorted(maps.Keys(m.want))).Draw(rt, "id")
	if err := m.r.Delete(context.Background(), id); err != nil {
		rt.Fatal(err)
	}
	delete(m.want, id)
}

func (m *model) maintain(rt *rapid.T) {
	if err := m.r.Maintain(context.Background(), MaintenanceOptions{Mode: FullMaintenance, Exclusive: true}); err != nil {
		rt.Fatal(err)
	}
	m.checked = -1
}

// check compares all restore points after each new one, and after maintenance.
func (m *model) check(rt *rapid.T) {
	if m.checked == m.generation {
		return
	}
	m.checked = m.generation
	points, err := m.r.List(context.Background(), &m.source)
	if err != nil || len(points) != len(m.want) {
		verdict.Fatalf(rt, "%d restore points, want %d: %v", len(points), len(m.want), err)
	}
	for _, p := range points {
		same(rt, m.r, p, m.want[p.ID])
		if want := m.definitions[p.ID]; want != "" {
			sameDefinition(rt, m.r, p, want)
		} else if p.Definition != nil {
			verdict.Fatalf(rt, "restore point %s has a definition", p.ID)
		}
	}
}

func same(tb verdict.TB, r *Repository, p *RestorePoint, want []byte) {
	tb.Helper()
	image, err := r.Image(context.Background(), p.Disks[0])
	if err != nil {
		tb.Fatalf("%v", err)
	}
	got := make([]byte, image.Disk.Bytes)
	if err := image.ReadAt(context.Background(), got, 0); err != nil {
		tb.Fatalf("%v", err)
	}
	if !bytes.Equal(got, want) {
		verdict.Fatalf(tb, "restore point %s of %s differs (full: %q)", p.ID, p.Time, p.Disks[0].FullReason)
	}
}
