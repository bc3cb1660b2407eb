package tunnel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
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

// proxy is a network between launcher and far end that breaks.
type proxy struct {
	listener net.Listener
	target   string
	// allowance returns how many bytes a connection carries in each direction until it is cut; 0 for no limit.
	allowance func() int64
	// frozen connections carry nothing and stay open.
	frozen atomic.Bool
	cuts   atomic.Int64
	all    sync.WaitGroup
	mu     sync.Mutex
	open   map[net.Conn]bool
}

func newProxy(t *testing.T, target string, allowance func() int64) *proxy {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: l, target: target, allowance: allowance, open: map[net.Conn]bool{}}
	p.all.Go(p.accept)
	t.Cleanup(func() {
		l.Close()
		p.mu.Lock()
		p.frozen.Store(false)
		for c := range p.open {
			c.Close()
		}
		p.open = nil
		p.mu.Unlock()
		p.all.Wait()
	})
	return p
}

func (p *proxy) accept() {
	for {
		near, err := p.listener.Accept()
		if err != nil {
			return
		}
		far, err := new(net.Dialer).DialContext(context.Background(), "tcp", p.target)
		if err != nil {
			near.Close()
			continue
		}
		p.mu.Lock()
		if p.open == nil {
			near.Close()
			far.Close()
		} else {
			p.open[near], p.open[far] = true, true
		}
		p.mu.Unlock()
		for _, pair := range [][2]net.Conn{{near, far}, {far, near}} {
			limit := p.allowance()
			p.all.Go(func() { p.carry(pair[0], pair[1], limit) })
		}
	}
}

// carry copies from one connection to the other, and cuts both when it has carried its allowance or one ends.
func (p *proxy) carry(from, to net.Conn, limit int64) {
	buffer := make([]byte, 32<<10)
	for carried := int64(0); ; {
		n, err := from.Read(buffer)
		if limit > 0 && carried+int64(n) >= limit {
			to.Write(buffer[:limit-carried])
			p.cuts.Add(1)
			err = io.ErrClosedPipe
		}
		for p.frozen.Load() && err == nil {
			time.Sleep(time.Millisecond)
		}
		if err == nil {
			_, err = to.Write(buffer[:n])
		}
		if carried += int64(n); err != nil {
			from.Close()
			to.Close()
			return
		}
	}
}

// readStubbornly reads a volume with as many attempts as it takes, each from where the one before failed.
func readStubbornly(ctx context.Context, s *Server, name string, e extent.Extent, scope export.Scope) ([]byte, error) {
	content := bytes.Repeat([]byte{0xee}, int(e.Length))
	for rest := e; !rest.Empty(); {
		v, err := s.Open(ctx, name)
		if err == nil {
			err = v.Read(ctx, rest, scope, func(c export.Chunk) error {
				part := content[c.Offset-e.Offset : c.End()-e.Offset]
				clear(part)
				copy(part, c.Data)
				rest = extent.Extent{Offset: c.End(), Length: e.End() - c.End()}
				return nil
			})
		}
		switch {
		case err == nil:
			return content, nil
		case !errors.Is(err, errclass.Transient):
			return nil, fmt.Errorf("at %v: %w", rest, err)
		}
		if err := s.Wait(ctx); err != nil {
			return nil, err
		}
	}
	return content, nil
}

// Connections are cut at random bytes, in both directions and in every phase: what is read is right all the same.
func TestBreak_readsGoOnAfterCuts(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	var mu sync.Mutex
	r := newRig(t, nil)
	p := newProxy(t, r.address, func() int64 {
		mu.Lock()
		defer mu.Unlock()
		if random.IntN(4) == 0 {
			return 1 + random.Int64N(4000) // in the handshakes
		}
		return 1 + random.Int64N(4<<20)
	})
	cfg := r.config()
	cfg.Address = p.listener.Addr().String()
	full, incremental := exporttest.NewVolume("full", 12<<20+512, false, 1), exporttest.NewVolume("incremental", 24<<20, true, 2)
	launch(t, cfg, full, incremental)
	var all sync.WaitGroup
	for _, c := range []struct {
		volume *exporttest.Volume
		scope  export.Scope
	}{{full, export.Everything}, {full, export.Changed}, {incremental, export.Everything}, {incremental, export.Changed}} {
		all.Go(func() {
			e := extent.Extent{Offset: 4096, Length: c.volume.Description.Bytes - 8192}
			want, _, err := readAll(t.Context(), c.volume, e, c.scope)
			if err != nil {
				t.Error(err)
			}
			got, err := readStubbornly(testContext(t), r.server, c.volume.Description.Name, e, c.scope)
			if err != nil || !bytes.Equal(got, want) {
				verdict.JudgeErrorf(t, err == nil, "%s, scope %d: other bytes: %v", c.volume.Description.Name, c.scope, err)
			}
		})
	}
	all.Wait()
	t.Logf("%d cuts, %+v", p.cuts.Load(), r.server.Counters())
	if p.cuts.Load() < 5 {
		t.Errorf("only %d cuts", p.cuts.Load())
	}
	if c := r.server.Counters(); c.Breaches != 0 || c.RefusedProofs != 0 || c.RefusedConflicts != 0 {
		t.Errorf("cuts were taken for something else: %+v", c)
	}
}

// A far end that is replaced, as an export pod that was evicted: what was in flight fails with Transient, and the launcher
// comes to the new one.
func TestBreak_farEndIsReplaced(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	cfg := r.config()
	seen := watchStates(&cfg)
	launch(t, cfg, newEndlessVolume("endless"))
	ended := make(chan error)
	begun := make(chan struct{}, 1)
	go func() {
		ended <- r.open(t, "endless").Read(testContext(t), extent.Extent{Length: 1 << 40}, export.Everything, func(export.Chunk) error {
			select {
			case begun <- struct{}{}:
			default:
			}
			return nil
		})
	}()
	<-begun
	old, err := r.server.Open(t.Context(), "endless")
	if err != nil {
		t.Fatal(err)
	}
	r.end(t)
	if err := <-ended; !errors.Is(err, errclass.Transient) || errors.Is(err, context.Canceled) {
		t.Errorf("what was in flight: %v", err)
	}
	if err := old.Read(t.Context(), extent.Extent{Length: 1}, export.Everything, ignoreChunk); !errors.Is(err, errclass.Transient) {
		t.Errorf("without a tunnel: %v", err)
	}
	if err := old.Regions(t.Context(), extent.Extent{Length: 1}, func(export.Region) bool { return true }); !errors.Is(err, errclass.Transient) {
		t.Errorf("without a tunnel: %v", err)
	}
	seen.await(t, func(s State) bool { return !s.Connected && s.Err != nil && s.Attempts >= 3 })
	r.server = newServer(t, r.ca)
	r.listen(t, r.address)
	if s := seen.await(t, func(s State) bool { return s.Connected }); s.Sessions != 2 || s.Err != nil {
		t.Errorf("%+v", s)
	}
	if _, _, err := readAll(testContext(t), r.open(t, "endless"), extent.Extent{Length: 1 << 20}, export.Everything); err != nil {
		t.Error(err)
	}
}

// A volume is one point in time: a later launcher's, under the same name, is not read for it.
func TestBreak_anotherPointInTimeIsNotRead(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	stop := launch(t, r.config(), exporttest.NewVolume("disk", 1<<20, false, 1))
	old := r.open(t, "disk")
	stop()
	waitUntil(t, "the end", func() bool { return !r.server.Connected() })
	launch(t, r.config(), exporttest.NewVolume("other", 1<<20, false, 1), exporttest.NewVolume("disk", 1<<20, false, 2))
	r.open(t, "disk")
	if err := old.Read(t.Context(), extent.Extent{Length: 1}, export.Everything, ignoreChunk); !errors.Is(err, errclass.Expired) {
		t.Errorf("Read: %v", err)
	}
	if err := old.Regions(t.Context(), extent.Extent{Length: 1}, func(export.Region) bool { return true }); !errors.Is(err, errclass.Expired) {
		t.Errorf("Regions: %v", err)
	}
}

// A network that carries nothing any more, and says nothing about it, is noticed on both sides.
func TestBreak_silenceIsNoticed(t *testing.T) {
	t.Parallel()
	const keepalive = 30 * time.Millisecond
	r := newRig(t, func(s *Server) { s.Limits.Keepalive = keepalive })
	p := newProxy(t, r.address, func() int64 { return 0 })
	cfg := r.config()
	cfg.Address, cfg.Keepalive = p.listener.Addr().String(), keepalive
	seen := watchStates(&cfg)
	launch(t, cfg, newEndlessVolume("endless"))
	v := r.open(t, "endless")
	ended := make(chan error)
	go func() {
		ended <- v.Read(testContext(t), extent.Extent{Length: 1 << 40}, export.Everything, func(export.Chunk) error {
			p.frozen.Store(true)
			return nil
		})
	}()
	if err := <-ended; !errors.Is(err, errclass.Transient) {
		t.Errorf("what was in flight: %v", err)
	}
	seen.await(t, func(s State) bool { return !s.Connected && s.Sessions >= 1 })
	p.frozen.Store(false)
	if _, err := readStubbornly(testContext(t), r.server, "endless", extent.Extent{Length: 1 << 20}, export.Everything); err != nil {
		t.Error(err)
	}
}

// When the contexts end, everything ends; TestMain looks for goroutines.
func TestBreak_endOfContexts(t *testing.T) {
	t.Parallel()
	for _, launcherFirst := range []bool{true, false} {
		r := newRig(t, nil)
		stop := launch(t, r.config(), newEndlessVolume("endless"))
		v := r.open(t, "endless")
		var all sync.WaitGroup
		var begun atomic.Int64
		for range 20 {
			all.Go(func() {
				first := true
				err := v.Read(testContext(t), extent.Extent{Length: 1 << 40}, export.Everything, func(export.Chunk) error {
					if first {
						begun.Add(1)
						first = false
					}
					return nil
				})
				if !errors.Is(err, errclass.Transient) {
					t.Errorf("what was in flight: %v", err)
				}
			})
		}
		waitUntil(t, "all readers", func() bool { return begun.Load() == 20 })
		if launcherFirst {
			stop()
		} else {
			r.end(t)
		}
		all.Wait()
		stop()
	}
}

// A connection that lasts is tried again soon after its end, and one that does not is tried less and less often.
func TestBackoff_growsAndIsReset(t *testing.T) {
	t.Parallel()
	l := &launcher{cfg: Config{MinBackoff: 100 * time.Millisecond, MaxBackoff: 5 * time.Second}, random: rand.New(rand.NewPCG(1, 1))}
	var b backoff
	for _, most := range []int64{100, 200, 400, 800, 1600, 3200, 5000, 5000} {
		longest := time.Duration(most) * time.Millisecond
		for range 3 {
			again := b
			if pause := again.nextPause(l.cfg, l.random); pause > longest || pause < longest/2 {
				t.Errorf("a pause of %v, of at most %v", pause, longest)
			}
		}
		b.nextPause(l.cfg, l.random)
	}
	b = backoff{}
	if pause := b.nextPause(l.cfg, l.random); pause > 100*time.Millisecond {
		t.Errorf("a pause of %v after a session", pause)
	}
}

// A mistake in one of a connection's goroutines ends the connection, and not the launcher.
func TestServing_survivesPanics(t *testing.T) {
	t.Parallel()
	s := &serving{launcher: &launcher{cfg: Config{}.withDefaults()}}
	if err := s.endOnPanic(func() error { panic("a mistake") }); err == nil || !strings.Contains(err.Error(), "a mistake") {
		t.Errorf("%v", err)
	}
}
