package source_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/export/exporttest"
	"github.com/varvebackup/varve/internal/export/source"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/test/disksource"
	"github.com/varvebackup/varve/test/verdict"
)

// diskOf returns what a source over the volume must show.
func diskOf(t *testing.T, v *exporttest.Volume) disksource.Disk {
	t.Helper()
	want := disksource.Disk{Content: v.Content, Exact: true}
	if !v.Description.Incremental {
		return want
	}
	var changed extent.Set
	err := v.Regions(t.Context(), extent.Extent{Length: v.Description.Bytes}, func(r export.Region) bool {
		if r.Kind != export.Clean {
			changed.Append(r.Extent)
		}
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	want.Changed = &changed
	return want
}

func TestDisk_isADiskSource(t *testing.T) {
	t.Parallel()
	for name, incremental := range map[string]bool{"full": false, "incremental": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := exporttest.NewVolume("disk", 9<<20+512, incremental, 3)
			disksource.Run(t, diskOf(t, v), func(t *testing.T) disksource.Source {
				t.Helper()
				d, err := source.Open(t.Context(), v, source.Options{Identity: "id"})
				if err != nil {
					t.Fatal(err)
				}
				return d
			})
		})
	}
}

// What has changed since a moment that nobody knows is not told, and what has not changed since then is data.
func TestOpen_wholeLeavesOutChanges(t *testing.T) {
	t.Parallel()
	v := exporttest.NewVolume("disk", 5<<20, true, 4)
	d, err := source.Open(t.Context(), v, source.Options{Whole: true})
	if err != nil {
		t.Fatal(err)
	}
	if changed, _ := d.Changes(t.Context()); changed != nil {
		verdict.Errorf(t, "changes %v", changed)
	}
	data, _ := d.Data(t.Context())
	for i, dirty := range v.Dirty {
		if block := (extent.Extent{Offset: int64(i) * exporttest.BlockBytes, Length: exporttest.BlockBytes}); !dirty && !data.Contains(block) {
			verdict.Errorf(t, "%v has not changed, and is no data", block)
		}
	}
}

// liar is a volume that describes itself as it likes.
type liar struct {
	info    export.Info
	regions func(report func(export.Region) bool)
	chunks  []export.Chunk
}

func (l *liar) Info() export.Info { return l.info }

func (l *liar) Regions(_ context.Context, _ extent.Extent, report func(export.Region) bool) error {
	l.regions(report)
	return nil
}

func (l *liar) Read(_ context.Context, _ extent.Extent, _ export.Scope, sink func(export.Chunk) error) error {
	for _, c := range l.chunks {
		if err := sink(c); err != nil {
			return err
		}
	}
	return nil
}

func region(offset, length int64, kind export.Kind) export.Region {
	return export.Region{Extent: extent.Extent{Offset: offset, Length: length}, Kind: kind}
}

// A launcher may name more regions than fit into memory. The disk keeps what was named, in larger granules if need be.
func TestOpen_memoryIsBounded(t *testing.T) { //nolint:paralleltest // it measures memory
	const many = 12 << 20 // regions, of 16 bytes and more each, if they were kept
	for name, c := range map[string]struct{ stride, length int64 }{
		"far apart": {4 << 20, 512}, "one beside the other": {1024, 512}, "a byte each": {2, 1},
	} {
		var before, now runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		var most uint64
		l := &liar{info: export.Info{Name: "disk", Bytes: many / 2 * c.stride, Incremental: true}}
		l.regions = func(report func(export.Region) bool) {
			for i := range int64(many / 2) {
				if !report(region(i*c.stride, c.length, export.Data)) || !report(region(i*c.stride+c.length, c.stride-c.length, export.Clean)) {
					t.Errorf("%s: refused at %d", name, i)
					return
				}
				if i%(1<<20) == 0 {
					runtime.GC()
					runtime.ReadMemStats(&now)
					most = max(most, now.HeapAlloc-min(before.HeapAlloc, now.HeapAlloc))
				}
			}
		}
		d, err := source.Open(t.Context(), l, source.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if most > 96<<20 {
			t.Errorf("%s: %d MiB for the map", name, most>>20)
		}
		changed, _ := d.Changes(t.Context())
		data, _ := d.Data(t.Context())
		if changed.Len() > 1<<20 || data.Len() > 1<<20 {
			t.Errorf("%s: %d and %d extents", name, data.Len(), changed.Len())
		}
		random := rand.New(rand.NewPCG(1, 1))
		for range 10000 {
			if e := (extent.Extent{Offset: random.Int64N(many/2) * c.stride, Length: c.length}); !changed.Contains(e) || !data.Contains(e) {
				verdict.Fatalf(t, "%s: %v is lost", name, e)
			}
		}
	}
}

func TestOpen_refusesVolumesThatContradictThemselves(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		bytes   int64
		regions []export.Region
	}{
		"no bytes":             {0, nil},
		"fewer than no bytes":  {-1, nil},
		"too many bytes":       {source.MaxBytes + 1, []export.Region{region(0, source.MaxBytes+1, export.Data)}},
		"no regions":           {1 << 20, nil},
		"an end that is short": {1 << 20, []export.Region{region(0, 1<<20-1, export.Data)}},
		"an end that is late":  {1 << 20, []export.Region{region(0, 1<<20+1, export.Data)}},
		"a region twice":       {1 << 20, []export.Region{region(0, 1<<19, export.Data), region(0, 1<<20, export.Zero)}},
		"a region of less":     {1 << 20, []export.Region{region(0, -5, export.Data)}},
		"an end beyond all":    {1 << 20, []export.Region{region(1<<19, 1<<63-1, export.Data)}},
	} {
		l := &liar{info: export.Info{Name: "disk", Bytes: c.bytes}, regions: func(report func(export.Region) bool) {
			for _, r := range c.regions {
				if !report(r) {
					return
				}
			}
		}}
		if _, err := source.Open(t.Context(), l, source.Options{}); !errors.Is(err, source.ErrVolume) || !errors.Is(errclass.Of(err), errclass.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What nobody describes may hold anything, and has not changed.
func TestMap_gapsAreData(t *testing.T) {
	t.Parallel()
	const granule = source.GranuleBytes
	var m source.Map
	for _, r := range []export.Region{region(2*granule, granule, export.Data), region(4*granule, granule, export.Zero)} {
		if err := m.Add(r); err != nil {
			t.Fatal(err)
		}
	}
	d := m.Disk(source.Description{Bytes: 8 * granule, Incremental: true}, nil)
	data, _ := d.Data(t.Context())
	changed, _ := d.Changes(t.Context())
	if data.Overlaps(extent.Extent{Offset: 4 * granule, Length: granule}) || data.Bytes() != 7*granule || changed.Bytes() != 2*granule {
		verdict.Errorf(t, "data %v, changed %v", data, changed)
	}
}

func TestReadAt_refusesOtherBytes(t *testing.T) {
	t.Parallel()
	chunk := func(offset, length int64, data []byte) export.Chunk {
		return export.Chunk{Extent: extent.Extent{Offset: offset, Length: length}, Data: data}
	}
	for name, chunks := range map[string][]export.Chunk{
		"nothing":              nil,
		"too little":           {chunk(100, 4, make([]byte, 4))},
		"too much":             {chunk(100, 16, make([]byte, 16))},
		"more zeroes":          {chunk(100, 1<<40, nil)},
		"another place":        {chunk(96, 8, make([]byte, 8))},
		"the same twice":       {chunk(100, 4, make([]byte, 4)), chunk(100, 4, make([]byte, 4))},
		"less than nothing":    {chunk(100, -4, nil)},
		"less than it says":    {chunk(100, 8, make([]byte, 4))},
		"a hole in the middle": {chunk(100, 2, make([]byte, 2)), chunk(104, 4, make([]byte, 4))},
	} {
		l := &liar{info: export.Info{Name: "disk", Bytes: 1 << 20}, chunks: chunks, regions: func(report func(export.Region) bool) { report(region(0, 1<<20, export.Data)) }}
		d, err := source.Open(t.Context(), l, source.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := d.ReadAt(t.Context(), make([]byte, 8), 100); !errors.Is(err, source.ErrVolume) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
