package tunnel

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/export/exporttest"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/test/verdict"
)

// endlessVolume has a TiB of data that costs nothing, and counts the calls of Read that are under way.
type endlessVolume struct {
	stubVolume
	reading, most atomic.Int64
	// wasted counts the chunks that were read and not taken.
	wasted atomic.Int64
	// wait, if set, is waited for before each chunk.
	wait func(ctx context.Context) error
}

var endlessData = bytes.Repeat([]byte{7}, export.MaxChunkBytes)

func newEndlessVolume(name string) *endlessVolume {
	v := &endlessVolume{stubVolume: stubVolume{info: export.Info{Name: name, Bytes: 1 << 40}}}
	v.read = func(ctx context.Context, e extent.Extent, sink func(export.Chunk) error) error {
		now := v.reading.Add(1)
		defer v.reading.Add(-1)
		for most := v.most.Load(); now > most && !v.most.CompareAndSwap(most, now); {
			most = v.most.Load()
		}
		for at := e.Offset; at < e.End(); {
			if v.wait != nil {
				if err := v.wait(ctx); err != nil {
					return err
				}
			}
			data := endlessData[:min(int64(len(endlessData)), e.End()-at)]
			if err := sink(export.Chunk{Extent: extent.Extent{Offset: at, Length: int64(len(data))}, Data: data, Checksum: export.Checksum(data)}); err != nil {
				v.wasted.Add(1)
				return err
			}
			at += int64(len(data))
		}
		return nil
	}
	return v
}

// stuckReaders begin n reads of each bytes whose sinks wait for release, and return once all sinks have got something.
// all waits for their ends.
func stuckReaders(t *testing.T, v export.Volume, n int, each int64) (release func(), all *sync.WaitGroup) {
	t.Helper()
	stuck, goOn := make(chan struct{}, n), make(chan struct{})
	all = &sync.WaitGroup{}
	for i := range n {
		all.Go(func() {
			first := true
			err := v.Read(testContext(t), extent.Extent{Offset: int64(i) * each, Length: each}, export.Everything, func(export.Chunk) error {
				if first {
					first = false
					stuck <- struct{}{}
					<-goOn
				}
				return nil
			})
			if err != nil {
				t.Errorf("reader %d: %v", i, err)
			}
		})
	}
	for range n {
		<-stuck
	}
	var once sync.Once
	release = func() { once.Do(func() { close(goOn) }) }
	t.Cleanup(release)
	return release, all
}

// Readers that take nothing, many more than the launcher has workers, leave it idle, and another one unharmed.
func TestFlow_slowReadersSlowNobody(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	endless, disk := newEndlessVolume("endless"), exporttest.NewVolume("disk", 8<<20, false, 1)
	launch(t, r.config(), endless, disk)
	release, all := stuckReaders(t, r.open(t, "endless"), 50, 1<<20)
	waitUntil(t, "idle workers", func() bool { return endless.reading.Load() == 0 })
	for range 3 {
		got, _, err := readAll(testContext(t), r.open(t, "disk"), extent.Extent{Length: 8 << 20}, export.Everything)
		if err != nil || !bytes.Equal(got, disk.Content) {
			verdict.JudgeErrorf(t, err == nil, "the fast reader: %v", err)
		}
	}
	if n := len(allRegions(t, r.open(t, "disk"), extent.Extent{Length: 8 << 20}, 1<<20)); n < 2 {
		t.Errorf("%d regions", n)
	}
	release()
	all.Wait()
	if wasted := endless.wasted.Load(); wasted > 0 {
		t.Errorf("%d chunks were read for nothing", wasted)
	}
	if most := endless.most.Load(); most > 8 {
		t.Errorf("%d reads of the disk at once, with 8 workers", most)
	}
}

// A request that could go on for ever lets others in, even if there is one worker.
func TestFlow_requestsTakeTurns(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	cfg := r.config()
	cfg.Workers = 1
	disk := exporttest.NewVolume("disk", 4<<20, true, 1)
	launch(t, cfg, newEndlessVolume("endless"), disk)
	ctx, cancel := context.WithCancel(testContext(t))
	begun, ended := make(chan struct{}), make(chan error)
	var once sync.Once
	go func() {
		ended <- r.open(t, "endless").Read(ctx, extent.Extent{Length: 1 << 40}, export.Everything, func(export.Chunk) error {
			once.Do(func() { close(begun) })
			return nil
		})
	}()
	<-begun
	got, _, err := readAll(testContext(t), r.open(t, "disk"), extent.Extent{Length: 4 << 20}, export.Everything)
	if err != nil || !bytes.Equal(got, disk.Content) {
		verdict.JudgeErrorf(t, err == nil, "beside an endless read: %v", err)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) || errclass.Of(err) != errclass.None {
		t.Errorf("the endless read: %v", err)
	}
}

// What docs/tunnel.md says of memory: Requests * 256 KiB + SharedBytes at the far end, however many readers there are and
// however little they take; at the launcher what Workers need.
func TestFlow_memoryIsBounded(t *testing.T) { //nolint:paralleltest // it measures the heap of the whole process
	const readers, requests, shared = 400, 100, 8 << 20
	r := newRig(t, func(s *Server) { s.Limits = Limits{Requests: requests, SharedBytes: shared, WindowBytes: 4 << 20} })
	endless := newEndlessVolume("endless")
	launch(t, r.config(), endless)
	v := r.open(t, "endless")
	runtime.GC()
	var before, now runtime.MemStats
	runtime.ReadMemStats(&before)
	var all sync.WaitGroup
	var got atomic.Int64
	goOn, enough := make(chan struct{}), errors.New("enough")
	for range readers {
		all.Go(func() {
			left := 6 // pieces that are read quickly, so that windows grow
			err := v.Read(testContext(t), extent.Extent{Length: 4 << 20}, export.Everything, func(c export.Chunk) error {
				got.Add(c.Length)
				if left--; left > 0 {
					return nil
				}
				<-goOn
				return enough
			})
			if err != enough { //nolint:errorlint // as it is
				t.Error(err)
			}
		})
	}
	waitUntil(t, "readers that wait", func() bool {
		return got.Load() == requests*6*maxPieceBytes && endless.reading.Load() == 0
	})
	time.Sleep(10 * time.Millisecond) // what is on its way
	const bound = requests*minCreditBytes + shared
	runtime.GC()
	runtime.ReadMemStats(&now)
	used, heap := r.server.buffers.used.Load(), int64(now.HeapAlloc)-int64(before.HeapAlloc)
	t.Logf("%d readers, %d requests: %d MiB of buffers, %d MiB of heap, bound %d MiB", readers, requests, used>>20, heap>>20, bound>>20)
	if used < bound/2 {
		t.Errorf("%d bytes of buffers: that is no load", used)
	}
	if heap > bound+16<<20 {
		t.Errorf("%d bytes of heap", heap)
	}
	close(goOn)
	all.Wait()
	if peak := r.server.buffers.peak.Load(); peak > bound {
		t.Errorf("%d bytes of buffers, of %d", peak, bound)
	}
}

func TestFlow_aThousandRequests(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(s *Server) { s.Limits.Requests = 1000 })
	launch(t, r.config(), newEndlessVolume("endless"))
	release, all := stuckReaders(t, r.open(t, "endless"), 1000, 5000)
	r.server.mu.Lock()
	if n := len(r.server.places); n != 1000 {
		t.Errorf("%d requests in flight", n)
	}
	r.server.mu.Unlock()
	release()
	all.Wait()
}

// The far end has no more requests in flight than the launcher takes; the others wait, and can be given up.
func TestFlow_launcherLimitsRequests(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	cfg := r.config()
	cfg.Requests = 2
	hold := make(chan struct{})
	endless := newEndlessVolume("endless")
	endless.wait = func(ctx context.Context) error {
		select {
		case <-hold:
		case <-ctx.Done():
		}
		return ctx.Err()
	}
	launch(t, cfg, endless)
	v := r.open(t, "endless")
	var all sync.WaitGroup
	for range 5 {
		all.Go(func() {
			if err := v.Read(testContext(t), extent.Extent{Length: 4096}, export.Everything, ignoreChunk); err != nil {
				t.Error(err)
			}
		})
	}
	waitUntil(t, "two reads", func() bool { return endless.reading.Load() == 2 })
	ctx, cancel := context.WithCancel(t.Context())
	waiting := make(chan error)
	go func() { waiting <- v.Read(ctx, extent.Extent{Length: 4096}, export.Everything, ignoreChunk) }()
	cancel()
	if err := <-waiting; !errors.Is(err, context.Canceled) {
		t.Errorf("a request that waited: %v", err)
	}
	close(hold)
	all.Wait()
	if c := r.server.Counters(); c.Breaches != 0 || c.Sessions != 1 {
		t.Errorf("%+v", c)
	}
}

// A request that is cancelled ends at the launcher too, whether it works or waits, and its place and its memory are free.
func TestCancel_freesEverything(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(s *Server) { s.Limits.Requests = 1 })
	endless, blocked := newEndlessVolume("endless"), newEndlessVolume("blocked")
	blocked.wait = func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}
	launch(t, r.config(), endless, blocked)
	for range 5 {
		// It waits for credit.
		ctx, cancel := context.WithCancel(testContext(t))
		err := r.open(t, "endless").Read(ctx, extent.Extent{Length: 1 << 40}, export.Everything, func(export.Chunk) error {
			waitUntil(t, "a full window", func() bool { return r.server.buffers.used.Load() == minCreditBytes && endless.reading.Load() == 0 })
			cancel()
			return ctx.Err()
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("a read that waits: %v", err)
		}
		// It reads from the disk.
		ctx, cancel = context.WithCancel(testContext(t))
		go func() {
			waitUntil(t, "a read of the disk", func() bool { return blocked.reading.Load() == 1 })
			cancel()
		}()
		if err := r.open(t, "blocked").Read(ctx, extent.Extent{Length: 1 << 40}, export.Everything, ignoreChunk); !errors.Is(err, context.Canceled) {
			t.Errorf("a read that is under way: %v", err)
		}
		waitUntil(t, "the end at the disk", func() bool { return blocked.reading.Load() == 0 })
	}
	if used := r.server.buffers.used.Load(); used != 0 {
		t.Errorf("%d bytes of buffers", used)
	}
}

// nextHasArrived reports whether a piece waits for the one reader that there is, or the launcher has sent all.
func (r *rig) nextHasArrived(t *testing.T) bool {
	t.Helper()
	session, err := r.server.session()
	if err != nil {
		t.Fatal(err)
	}
	session.mu.Lock()
	defer session.mu.Unlock()
	for _, st := range session.streams {
		st.mu.Lock()
		defer st.mu.Unlock()
		return len(st.arrivals) > st.taken
	}
	return true
}

// A window grows for who waits for the network, and for nobody else.
func TestFlow_windowsGrowForFastReaders(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	launch(t, r.config(), newEndlessVolume("endless"))
	v := r.open(t, "endless")
	slow := extent.Extent{Length: 8 << 20}
	if err := v.Read(testContext(t), slow, export.Everything, func(c export.Chunk) error {
		// A piece has always arrived before it is asked for.
		waitUntil(t, "the next piece", func() bool { return r.nextHasArrived(t) })
		if lent := r.server.shared.Load(); lent != 0 {
			t.Errorf("a slow reader was lent %d bytes", lent)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	fast := extent.Extent{Length: 1 << 40}
	enough := errors.New("it has grown")
	if err := v.Read(testContext(t), fast, export.Everything, func(export.Chunk) error {
		if r.server.shared.Load() == 1<<20-minCreditBytes {
			return enough
		}
		return nil
	}); err != enough { //nolint:errorlint // as it is
		t.Error(err)
	}
}

// TestRead_allocatesLittle: in the steady state a request costs a few small allocations, and content no more than Go's TLS
// does, which is one for each record that it reads.
func TestRead_allocatesLittle(t *testing.T) { //nolint:paralleltest // it counts the allocations of the whole process
	r := newRig(t, nil)
	launch(t, r.config(), newBenchVolume())
	v := r.open(t, "disk")
	read := func(bytes int64) float64 {
		return testing.AllocsPerRun(5, func() {
			if err := v.Read(t.Context(), extent.Extent{Length: bytes}, export.Everything, ignoreChunk); err != nil {
				t.Fatal(err)
			}
		})
	}
	short, long := read(64<<10), read(16<<20)
	t.Logf("%v allocations for 64 KiB, %v for 16 MiB", short, long)
	if short > 100 || long > 16*100 {
		t.Errorf("%v allocations for 64 KiB, %v for 16 MiB", short, long)
	}
}
