package nbdvolume

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/semaphore"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/export/exporttest"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/nbd"
	"github.com/varvebackup/varve/test/verdict"
)

// backend serves a volume in memory with QEMU's contexts.
type backend struct {
	*exporttest.Volume
	// statusRuns counts the runs that were reported.
	statusRuns atomic.Int64
	// hideZeroes: a block device says that everything is data.
	hideZeroes bool
	// onStatus is called at the beginning of each query, if it is set.
	onStatus func()
}

func (b *backend) Size() int64 { return b.Description.Bytes }

func (b *backend) ReadAt(_ context.Context, p []byte, offset int64) error {
	copy(p, b.Content[offset:])
	return nil
}

func (b *backend) Contexts() []string {
	return []string{nbd.ContextAllocation, nbd.ContextDirtyBitmap + "bitmap"}
}

func (b *backend) BlockStatus(ctx context.Context, name string, e extent.Extent, report func(int64, uint64) bool) error {
	if b.onStatus != nil {
		b.onStatus()
	}
	return b.Regions(ctx, e, func(r export.Region) bool {
		b.statusRuns.Add(1)
		flags := uint64(0)
		switch {
		case name == nbd.ContextAllocation && r.Kind == export.Zero && !b.hideZeroes:
			flags = nbd.StateZero | nbd.StateHole
		case name != nbd.ContextAllocation && r.Kind != export.Clean:
			flags = nbd.StateDirty
		}
		return report(r.Length, flags)
	})
}

type exports map[string]nbd.Backend

func (x exports) Open(_ context.Context, name string) (nbd.Export, error) {
	b, ok := x[name]
	if !ok {
		return nbd.Export{}, nbd.ErrUnknownExport
	}
	return nbd.Export{Backend: b, ReadOnly: true, MultiConn: true}, nil
}

func (x exports) List(context.Context) ([]nbd.ListedExport, error) { return nil, nil }

// open serves a backend and opens it.
func open(t *testing.T, b nbd.Backend, bitmap string) *Volume {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "nbd")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	served := make(chan error, 1)
	go func() { served <- (&nbd.Server{Exports: exports{"disk": b}}).Serve(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	v, err := Open(ctx, nbd.Target{Network: "unix", Address: socket, Export: "disk"}, Options{Name: "root", PointInTime: "now", Bitmap: bitmap, Connections: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	})
	return v
}

func regionsOf(t *testing.T, v export.Volume, e extent.Extent) (regions []export.Region) {
	t.Helper()
	if err := v.Regions(t.Context(), e, func(r export.Region) bool { regions = append(regions, r); return true }); err != nil {
		t.Fatal(err)
	}
	return regions
}

// readAll returns what Read sends of e, and which bytes it sent. What it did not send is 0xee.
func readAll(t *testing.T, v export.Volume, e extent.Extent, scope export.Scope) (data []byte, sent extent.Set) {
	t.Helper()
	data = bytes.Repeat([]byte{0xee}, int(e.Length))
	err := v.Read(t.Context(), e, scope, func(c export.Chunk) error {
		part := data[c.Offset-e.Offset : c.End()-e.Offset]
		if c.Data == nil {
			clear(part)
		} else if copy(part, c.Data) != len(part) || c.Checksum != export.Checksum(c.Data) || len(c.Data) > export.MaxChunkBytes {
			verdict.Errorf(t, "chunk %v has %d bytes and checksum %x", c.Extent, len(c.Data), c.Checksum)
		}
		sent.Append(c.Extent)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return data, sent
}

func TestVolume_hasTheRegionsAndBytesOfTheExport(t *testing.T) {
	t.Parallel()
	for _, incremental := range []bool{false, true} {
		const size = 37<<20 + 512*9
		b := &backend{Volume: exporttest.NewVolume("root", size, incremental, 3)}
		bitmap := ""
		if incremental {
			bitmap = "bitmap"
		}
		v := open(t, b, bitmap)
		if want := (export.Info{Name: "root", Bytes: size, Incremental: incremental, PointInTime: "now"}); v.Info() != want {
			t.Errorf("%+v, want %+v", v.Info(), want)
		}
		random := rand.New(rand.NewPCG(1, 2))
		for range 60 {
			e := extent.Extent{Offset: random.Int64N(size/512) * 512}
			e.Length = min(512+random.Int64N(8<<20)/512*512, size-e.Offset)
			if diff := cmp.Diff(regionsOf(t, b.Volume, e), regionsOf(t, v, e)); diff != "" {
				verdict.Fatalf(t, "incremental %v, %v: %s", incremental, e, diff)
			}
			data, sent := readAll(t, v, e, export.Everything)
			if !bytes.Equal(data, b.Content[e.Offset:e.End()]) || sent.Bytes() != e.Length {
				verdict.Fatalf(t, "incremental %v: other bytes in %v", incremental, e)
			}
			wantData, wantSent := readAll(t, b.Volume, e, export.Changed)
			data, sent = readAll(t, v, e, export.Changed)
			if !bytes.Equal(data, wantData) || !cmp.Equal(sent, wantSent, cmp.AllowUnexported(extent.Set{})) {
				verdict.Fatalf(t, "incremental %v: other changes in %v", incremental, e)
			}
		}
	}
}

func TestRead_findsZeroesThatTheServerCallsData(t *testing.T) {
	t.Parallel()
	const size = 4 << 20
	b := &backend{Volume: exporttest.NewVolume("root", size, false, 5), hideZeroes: true}
	var dataBytes, want int64
	for e := range b.zeroSet(t, size).All() {
		want += e.Length
	}
	v := open(t, b, "")
	err := v.Read(t.Context(), extent.Extent{Length: size}, export.Everything, func(c export.Chunk) error {
		dataBytes += int64(len(c.Data))
		return nil
	})
	if err != nil || dataBytes != size-want {
		t.Errorf("%d bytes of data, want %d: %v", dataBytes, size-want, err)
	}
}

func (b *backend) zeroSet(t *testing.T, size int64) (s extent.Set) {
	t.Helper()
	for _, r := range regionsOf(t, b.Volume, extent.Extent{Length: size}) {
		if r.Kind == export.Zero {
			s.Append(r.Extent)
		}
	}
	return s
}

// The first query finds zeroes that the guest has just written over data: the second one finds the data in the scratch image.
func TestRegions_zeroesCountOnlyIfTheyAreSeenTwice(t *testing.T) {
	t.Parallel()
	const size = 1 << 20
	b := &backend{Volume: exporttest.NewVolume("root", size, false, 5)}
	copy(b.Content, make([]byte, size))
	var queries atomic.Int64
	b.onStatus = func() { b.hideZeroes = queries.Add(1) > 1 }
	v := open(t, b, "")
	for _, r := range regionsOf(t, v, extent.Extent{Length: size}) {
		if r.Kind != export.Data {
			verdict.Errorf(t, "%v is %d after %d queries", r.Extent, r.Kind, queries.Load())
		}
	}
}

func TestRead_endsWithTheSinksError(t *testing.T) {
	t.Parallel()
	b := &backend{Volume: exporttest.NewVolume("root", 64<<20, false, 5)}
	v := open(t, b, "")
	enough := errors.New("enough")
	calls := 0
	err := v.Read(t.Context(), extent.Extent{Length: 64 << 20}, export.Everything, func(export.Chunk) error {
		calls++
		if calls == 5 {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) || calls != 5 {
		t.Errorf("%v after %d calls", err, calls)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	err = v.Read(ctx, extent.Extent{Length: 64 << 20}, export.Everything, func(export.Chunk) error {
		cancel(enough)
		return nil
	})
	if !errors.Is(err, enough) && !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	// The connections are as they were.
	if data, _ := readAll(t, v, extent.Extent{Offset: 512, Length: 4096}, export.Everything); !bytes.Equal(data, b.Content[512:512+4096]) {
		verdict.Errorf(t, "other bytes after a read that was given up")
	}
}

func TestVolume_refusesWhatIsNotInTheDisk(t *testing.T) {
	t.Parallel()
	v := open(t, &backend{Volume: exporttest.NewVolume("root", 1<<20, false, 5)}, "")
	for _, e := range []extent.Extent{{Offset: 1 << 20, Length: 1}, {Offset: -1, Length: 1}, {Offset: 1 << 62, Length: 1 << 62}, {Length: 1<<20 + 1}} {
		if err := v.Regions(t.Context(), e, func(export.Region) bool { return true }); !errors.Is(err, errclass.Invalid) {
			t.Errorf("regions of %v: %v", e, err)
		}
		if err := v.Read(t.Context(), e, export.Everything, func(export.Chunk) error { return nil }); !errors.Is(err, errclass.Invalid) {
			t.Errorf("read of %v: %v", e, err)
		}
	}
}

func TestOpen_refusesAnExportWithoutTheBitmap(t *testing.T) {
	t.Parallel()
	v := open(t, &backend{Volume: exporttest.NewVolume("root", 1<<20, false, 5)}, "")
	_ = v
	socket := filepath.Join(t.TempDir(), "nbd")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		_ = (&nbd.Server{Exports: exports{"disk": &backend{Volume: exporttest.NewVolume("root", 1<<20, true, 5)}}}).Serve(ctx, listener)
	}()
	target := nbd.Target{Network: "unix", Address: socket, Export: "disk"}
	if _, err := Open(ctx, target, Options{Name: "root", Bitmap: "another"}); !errors.Is(err, errclass.Invalid) {
		t.Errorf("%v", err)
	}
}

// scattered is a disk of which every 16th block is dirty.
type scattered struct{ bytes, runs int64 }

const scatter = 16 * exporttest.BlockBytes

func (s *scattered) Size() int64 { return s.bytes }

func (s *scattered) ReadAt(_ context.Context, p []byte, _ int64) error { clear(p); return nil }

func (s *scattered) Contexts() []string {
	return []string{nbd.ContextAllocation, nbd.ContextDirtyBitmap + "bitmap"}
}

func (s *scattered) BlockStatus(_ context.Context, name string, e extent.Extent, report func(int64, uint64) bool) error {
	if name == nbd.ContextAllocation {
		report(e.Length, 0)
		return nil
	}
	for at := e.Offset; at < e.End(); {
		next, flags := at/scatter*scatter+exporttest.BlockBytes, uint64(nbd.StateDirty)
		if at >= next {
			next, flags = (at/scatter+1)*scatter, 0
		}
		s.runs++
		if !report(next-at, flags) {
			return nil
		}
		at = next
	}
	return nil
}

// What a page of a large map costs does not depend on where it begins, or on how large the disk is.
func TestRegions_aPageCostsWhatItReports(t *testing.T) {
	t.Parallel()
	const size = 1 << 40
	disk := &scattered{bytes: size}
	v := open(t, disk, "bitmap")
	for _, offset := range []int64{0, size / 3 / 512 * 512, size - 1<<30} {
		disk.runs = 0
		wanted := 512
		err := v.Regions(t.Context(), extent.Extent{Offset: offset, Length: size - offset}, func(export.Region) bool {
			wanted--
			return wanted > 0
		})
		if err != nil || disk.runs > 4*512 {
			t.Errorf("at %d: %d runs for 512 regions: %v", offset, disk.runs, err)
		}
	}
}

// Scattered changes take small buffers: what one Read holds is bounded, whatever the disk looks like.
func TestRead_holdsNoMoreThanItsMemory(t *testing.T) {
	t.Parallel()
	v := open(t, &scattered{bytes: 4 << 30}, "bitmap")
	memory := semaphore.NewWeighted(MaxReadBytes)
	pieces := make(chan piece, readsAhead)
	go func() {
		defer close(pieces)
		client, _ := v.line.now()
		_ = v.planReads(t.Context(), client, extent.Extent{Length: 4 << 30}, export.Changed, memory, pieces)
	}()
	held := int64(0)
	for range readsAhead {
		p := <-pieces
		held += int64(len(p.buffer))
		defer p.release(memory)
	}
	if held > MaxReadBytes {
		t.Errorf("%d bytes are held for %d parts of the disk", held, readsAhead)
	}
	go func() {
		for p := range pieces {
			p.release(memory)
		}
	}()
}
