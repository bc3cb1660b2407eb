package tunnel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/export/exporttest"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/test/verdict"
)

// readAll returns what Read sends, as bytes with the offsets that were sent.
func readAll(ctx context.Context, v export.Volume, e extent.Extent, scope export.Scope) (content []byte, sent []extent.Extent, err error) {
	content = bytes.Repeat([]byte{0xee}, int(e.Length)) // what is not sent stays like this
	at := e.Offset
	err = v.Read(ctx, e, scope, func(c export.Chunk) error {
		if c.Offset < at || !e.Contains(c.Extent) || c.Data != nil && int64(len(c.Data)) != c.Length {
			return verdict.Error("chunk %v with %d bytes after %d", c.Extent, len(c.Data), at)
		}
		if c.Data != nil && export.Checksum(c.Data) != c.Checksum {
			return verdict.Error("chunk %v has another checksum", c.Extent)
		}
		part := content[c.Offset-e.Offset : c.End()-e.Offset]
		clear(part)
		copy(part, c.Data)
		if n := len(sent); n > 0 && sent[n-1].End() == c.Offset {
			sent[n-1].Length += c.Length
		} else {
			sent = append(sent, c.Extent)
		}
		at = c.End()
		return nil
	})
	return content, sent, err
}

func allRegions(t rapid.TB, v export.Volume, e extent.Extent, most int) []export.Region {
	t.Helper()
	var regions []export.Region
	if err := v.Regions(context.Background(), e, func(r export.Region) bool {
		regions = append(regions, r)
		return len(regions) < most
	}); err != nil {
		t.Fatal(err)
	}
	return regions
}

// What is read at the far end is what the launcher's volume has: bytes, extents, checksums and regions, for any extent.
func TestVolume_isTheLaunchersVolume(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	local := map[string]*exporttest.Volume{
		"full":        exporttest.NewVolume("full", 5<<20+4096, false, 1),
		"incremental": exporttest.NewVolume("incremental", 8<<20, true, 2),
		"odd":         exporttest.NewVolume("odd", 3<<20+777, true, 3),
	}
	launch(t, r.config(), local["full"], local["incremental"], local["odd"])
	rapid.Check(t, func(rt *rapid.T) {
		name := rapid.SampledFrom([]string{"full", "incremental", "odd"}).Draw(rt, "volume")
		near, far := local[name], r.open(t, name)
		if far.Info() != near.Info() {
			rt.Fatalf("%+v is %+v", near.Info(), far.Info())
		}
		var e extent.Extent
		e.Offset = rapid.Int64Range(0, near.Info().Bytes).Draw(rt, "offset")
		e.Length = rapid.Int64Range(0, near.Info().Bytes-e.Offset).Draw(rt, "length")
		scope := rapid.SampledFrom([]export.Scope{export.Everything, export.Changed}).Draw(rt, "scope")
		want, wantSent, err := readAll(context.Background(), near, e, scope)
		if err != nil {
			rt.Fatal(err)
		}
		got, gotSent, err := readAll(context.Background(), far, e, scope)
		if err != nil || !bytes.Equal(got, want) {
			verdict.JudgeFatalf(rt, err == nil, "%s %v: other bytes: %v", name, e, err)
		}
		if diff := cmp.Diff(wantSent, gotSent); diff != "" {
			verdict.Fatalf(rt, "%s %v: other extents: %s", name, e, diff)
		}
		most := rapid.IntRange(1, 1000).Draw(rt, "regions")
		if diff := cmp.Diff(allRegions(rt, near, e, most), allRegions(rt, far, e, most)); diff != "" {
			verdict.Fatalf(rt, "%s %v: other regions: %s", name, e, diff)
		}
	})
}

// scatteredVolume has as many regions as it can, and of the same kind on both sides of a page's end.
type scatteredVolume struct {
	stubVolume
	calls   int
	uniform bool // then they are all of one kind, which breaks the contract
}

func (v *scatteredVolume) Regions(_ context.Context, e extent.Extent, report func(export.Region) bool) error {
	v.calls++
	for at := e.Offset; at < e.End(); at += 512 {
		kind := export.Data
		if at/512%2 == 1 && !v.uniform {
			kind = export.Zero
		}
		if !report(export.Region{Extent: extent.Extent{Offset: at, Length: min(512, e.End()-at)}, Kind: kind}) {
			return nil
		}
	}
	return nil
}

func TestRegions_areReadInPages(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	near := &scatteredVolume{stubVolume: stubVolume{info: export.Info{Name: "disk", Bytes: 20000 * 512}}}
	launch(t, r.config(), near)
	far := r.open(t, "disk")
	whole := extent.Extent{Length: near.info.Bytes}
	if got, want := allRegions(t, far, whole, 1<<30), allRegions(t, near, whole, 1<<30); len(got) != 20000 || !slices.Equal(got, want) {
		verdict.Errorf(t, "%d regions", len(got))
	}
	if near.calls > 10 {
		t.Errorf("%d pages", near.calls)
	}
	near.uniform = true
	if got := allRegions(t, far, whole, 1<<30); len(got) != 1 || got[0].Extent != whole {
		verdict.Errorf(t, "%d regions of one kind", len(got))
	}
}

// stubVolume does what a test says.
type stubVolume struct {
	info    export.Info
	regions func(context.Context, extent.Extent, func(export.Region) bool) error
	read    func(context.Context, extent.Extent, func(export.Chunk) error) error
}

func (v *stubVolume) Info() export.Info { return v.info }

func (v *stubVolume) Regions(ctx context.Context, e extent.Extent, report func(export.Region) bool) error {
	if v.regions != nil {
		return v.regions(ctx, e, report)
	}
	report(export.Region{Extent: e, Kind: export.Data})
	return nil
}

func (v *stubVolume) Read(ctx context.Context, e extent.Extent, _ export.Scope, sink func(export.Chunk) error) error {
	return v.read(ctx, e, sink)
}

func ignoreChunk(export.Chunk) error { return nil }

// Every class arrives as itself, with the text, and none harms another request.
func TestErrors_arriveWithTheirClass(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	var failure error
	launch(t, r.config(), &stubVolume{
		info:    export.Info{Name: "disk", Bytes: 1 << 20},
		regions: func(context.Context, extent.Extent, func(export.Region) bool) error { return failure },
	})
	v := r.open(t, "disk")
	for _, class := range append(allClasses(), errors.New("no class")) {
		failure = fmt.Errorf("sector 7\x1b\n is gone: %w", class)
		for _, err := range []error{
			v.Regions(testContext(t), extent.Extent{Length: 4096}, func(export.Region) bool { return true }),
			v.Read(testContext(t), extent.Extent{Length: 4096}, export.Everything, ignoreChunk),
		} {
			if errclass.Of(err) != errclass.Of(failure) || err == nil || !strings.Contains(err.Error(), "launcher: sector 7   is gone: ") {
				t.Errorf("%v arrives as %v, of class %v", failure, err, errclass.Of(err))
			}
		}
	}
	if c := r.server.Counters(); c.Sessions != 1 || c.Lost != 0 {
		t.Errorf("%+v", c)
	}
}

// A volume that breaks its contract, or panics, fails the request and not the launcher.
func TestRead_volumesThatMisbehave(t *testing.T) {
	t.Parallel()
	data := make([]byte, minCreditBytes) // a slice, and two pieces
	good := export.Chunk{Extent: extent.Extent{Length: int64(len(data))}, Data: data, Checksum: export.Checksum(data)}
	chunk := func(change func(*export.Chunk)) func(context.Context, extent.Extent, func(export.Chunk) error) error {
		return func(_ context.Context, _ extent.Extent, sink func(export.Chunk) error) error {
			c := good
			change(&c)
			return sink(c)
		}
	}
	for name, c := range map[string]struct {
		read  func(context.Context, extent.Extent, func(export.Chunk) error) error
		class errclass.Class
	}{
		"a panic":                   {read: func(context.Context, extent.Extent, func(export.Chunk) error) error { panic("oops") }},
		"data beyond the extent":    {read: chunk(func(c *export.Chunk) { c.Offset = 1 << 30 })},
		"data before the extent":    {read: chunk(func(c *export.Chunk) { c.Offset = -1 })},
		"less data than it says":    {read: chunk(func(c *export.Chunk) { c.Data = c.Data[:1] })},
		"a wrong sum, in pieces":    {read: chunk(func(c *export.Chunk) { c.Checksum++ }), class: errclass.Corrupt},
		"a wrong sum, in one piece": {read: chunk(func(c *export.Chunk) { c.Length, c.Data = 4096, c.Data[:4096] }), class: errclass.Corrupt},
		"less than was asked for":   {read: func(context.Context, extent.Extent, func(export.Chunk) error) error { return nil }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, nil)
			launch(t, r.config(), &stubVolume{info: export.Info{Name: "disk", Bytes: good.Length}, read: c.read}, exporttest.NewVolume("other", 1<<20, false, 1))
			err := r.open(t, "disk").Read(testContext(t), good.Extent, export.Everything, ignoreChunk)
			if err == nil || errclass.Of(err) != c.class {
				t.Errorf("%v, of class %v", err, errclass.Of(err))
			}
			if _, _, err := readAll(testContext(t), r.open(t, "other"), extent.Extent{Length: 1 << 20}, export.Everything); err != nil {
				t.Errorf("another volume: %v", err)
			}
		})
	}
}

func TestVolume_checksWhatItIsAsked(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	ctx := testContext(t)
	if _, err := r.server.Open(ctx, "disk"); !errors.Is(err, errclass.Transient) {
		t.Errorf("Open without a launcher: %v", err)
	}
	if _, err := r.server.List(); !errors.Is(err, errclass.Transient) || r.server.Connected() {
		t.Errorf("List without a launcher: %v", err)
	}
	launch(t, r.config(), exporttest.NewVolume("disk", 1<<20, false, 1))
	v := r.open(t, "disk")
	if infos, err := r.server.List(); err != nil || len(infos) != 1 || infos[0] != v.Info() {
		t.Errorf("List: %v, %v", infos, err)
	}
	if _, err := r.server.Open(ctx, "disk2"); !errors.Is(err, errclass.NotFound) {
		t.Errorf("Open of what is not there: %v", err)
	}
	for _, e := range []extent.Extent{{Offset: -1, Length: 1}, {Length: 1<<20 + 1}, {Offset: 1<<20 + 1}, {Offset: 1, Length: 1<<63 - 1}} {
		if err := v.Read(ctx, e, export.Everything, ignoreChunk); !errors.Is(err, errclass.Invalid) {
			t.Errorf("Read of %v: %v", e, err)
		}
		if err := v.Regions(ctx, e, func(export.Region) bool { return true }); !errors.Is(err, errclass.Invalid) {
			t.Errorf("Regions of %v: %v", e, err)
		}
	}
	if err := v.Read(ctx, extent.Extent{Length: 1}, 7, ignoreChunk); !errors.Is(err, errclass.Invalid) {
		t.Errorf("scope 7: %v", err)
	}
	sinks := errors.New("the sink's own")
	if err := v.Read(ctx, extent.Extent{Length: 1 << 20}, export.Everything, func(export.Chunk) error { return sinks }); err != sinks { //nolint:errorlint // as it is
		t.Errorf("the sink's error: %v", err)
	}
}

func TestRun_refusesWhatCannotBeOffered(t *testing.T) {
	t.Parallel()
	good := (&rig{address: "h:1", ca: newAuthority(t)}).config()
	info := export.Info{Name: "disk", Bytes: 1}
	for name, c := range map[string]struct {
		change func(*Config)
		infos  []export.Info
	}{
		"no address":       {change: func(c *Config) { c.Address = "" }},
		"no server name":   {change: func(c *Config) { c.ServerName = "" }},
		"no authorities":   {change: func(c *Config) { c.CA = nil }},
		"no token":         {change: func(c *Config) { c.Token = nil }},
		"no UID":           {change: func(c *Config) { c.BackupUID = "" }},
		"a long UID":       {change: func(c *Config) { c.BackupUID = strings.Repeat("u", maxUIDBytes+1) }},
		"a negative limit": {change: func(c *Config) { c.Workers = -1 }},
		"two of a name":    {infos: []export.Info{info, info}},
		"no name":          {infos: []export.Info{{Bytes: 1}}},
		"a name in binary": {infos: []export.Info{{Name: "a\x00"}}},
		"a negative size":  {infos: []export.Info{{Name: "a", Bytes: -1}}},
		"a long point":     {infos: []export.Info{{Name: "a", PointInTime: strings.Repeat("p", maxPointInTimeBytes+1)}}},
		"too many":         {infos: make([]export.Info, maxVolumes+1)},
	} {
		cfg := good
		if c.change != nil {
			c.change(&cfg)
		}
		if err := Run(t.Context(), cfg, nil, c.infos); !errors.Is(err, errclass.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// allData is a disk of one region. It notes how much of itself it was asked about at once.
type allData struct {
	bytes   int64
	longest atomic.Int64
}

func (v *allData) Info() export.Info {
	return export.Info{Name: "huge", Bytes: v.bytes, PointInTime: "huge"}
}

func (v *allData) Regions(_ context.Context, e extent.Extent, report func(export.Region) bool) error {
	v.longest.Store(max(v.longest.Load(), e.Length))
	report(export.Region{Extent: e, Kind: export.Data})
	return nil
}

func (v *allData) Read(_ context.Context, e extent.Extent, _ export.Scope, sink func(export.Chunk) error) error {
	data := make([]byte, planAlign)
	for at := e.Offset; at < e.End(); at += planAlign {
		part := extent.Extent{Offset: at, Length: min(planAlign, e.End()-at)}
		chunk := export.Chunk{Extent: part, Data: data[:part.Length], Checksum: export.Checksum(data[:part.Length])}
		if err := sink(chunk); err != nil {
			return err
		}
	}
	return nil
}

// A slice does not look at the whole rest of a disk.
func TestRead_plansALittleAtATime(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	disk := &allData{bytes: 1 << 40}
	launch(t, r.config(), disk)
	v, enough, read := r.open(t, "huge"), errors.New("enough"), int64(0)
	err := v.Read(testContext(t), extent.Extent{Length: disk.bytes}, export.Everything, func(c export.Chunk) error {
		if read += c.Length; read >= 8<<20 {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) || disk.longest.Load() > planBytes {
		t.Errorf("a slice of 1 MiB looks at %d bytes: %v", disk.longest.Load(), err)
	}
}

// allClasses returns all classes as errors.
func allClasses() (out []error) {
	for _, class := range errclass.All {
		out = append(out, class)
	}
	return out
}
