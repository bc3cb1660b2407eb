package nbd

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/varvebackup/varve/internal/extent"
)

// TestBudget_isNeverExceeded: no matter who gives up waiting. And nobody waits forever.
func TestBudget_isNeverExceeded(t *testing.T) {
	t.Parallel()
	const total = 10
	b := newBudget(total)
	var used atomic.Int64
	var all sync.WaitGroup
	for i := range int64(8) {
		all.Go(func() {
			for j := range int64(200) {
				ctx, cancel := context.WithCancel(testContext(t))
				if j%3 == i%3 {
					go cancel()
				}
				n, err := b.acquireBytes(ctx, 1+(i*j)%13)
				if err == nil {
					if now := used.Add(n); now > total {
						t.Errorf("%d of %d in use", now, total)
					}
					used.Add(-n)
					b.releaseBytes(n)
				} else if !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
				cancel()
			}
		})
	}
	all.Wait()
	if b.free != total || b.first != nil || b.last != nil {
		t.Errorf("%d of %d are free", b.free, total)
	}
}

// TestCoverage compares with a model of one bool per byte.
func TestCoverage(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		var c coverage
		var model [100]bool
		var bytes int64
		for range rapid.IntRange(0, 30).Draw(r, "chunks") {
			at := rapid.Int64Range(0, 99).Draw(r, "offset")
			e := extent.Extent{Offset: at, Length: rapid.Int64Range(1, min(100-at, 12)).Draw(r, "length")}
			twice := false
			for i := e.Offset; i < e.End(); i++ {
				twice = twice || model[i]
			}
			if err := c.addExtent(e); (err != nil) != twice {
				r.Fatalf("%v: %v", e, err)
			}
			if twice {
				continue
			}
			for i := e.Offset; i < e.End(); i++ {
				model[i] = true
			}
			bytes += e.Length
		}
		if c.bytes != bytes {
			r.Fatalf("%d bytes, want %d", c.bytes, bytes)
		}
	})
}

func TestCoverage_refusesTooManyFragments(t *testing.T) {
	t.Parallel()
	var c coverage
	for i := range int64(maxFragments) {
		if err := c.addExtent(extent.Extent{Offset: 2 * i, Length: 1}); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.addExtent(extent.Extent{Offset: 1, Length: 1}); err != nil {
		t.Errorf("what joins two: %v", err)
	}
	if err := errors.Join(c.addExtent(extent.Extent{Offset: 1 << 30, Length: 1}), c.addExtent(extent.Extent{Offset: 1 << 31, Length: 1})); !errors.Is(err, ErrProtocol) {
		t.Errorf("%v", err)
	}
}

// TestBudget_servesInOrder: waiters are not overtaken, one that gives up is skipped, and what it was given meanwhile is
// not lost.
func TestBudget_servesInOrder(t *testing.T) {
	t.Parallel()
	b := newBudget(10)
	if n, err := b.acquireBytes(t.Context(), 100); n != 10 || err != nil {
		t.Fatalf("%d, %v: more than there is means all", n, err)
	}
	type waiting struct {
		cancel context.CancelFunc
		done   chan error
	}
	wait := func(n int64, waiters int) waiting {
		ctx, cancel := context.WithCancel(testContext(t))
		w := waiting{cancel, make(chan error, 1)}
		go func() {
			_, err := b.acquireBytes(ctx, n)
			w.done <- err
		}()
		for queued := 0; queued < waiters; runtime.Gosched() {
			b.mu.Lock()
			queued = 0
			for at := b.first; at != nil; at = at.next {
				queued++
			}
			b.mu.Unlock()
		}
		return w
	}
	first, second, third, fourth := wait(6, 1), wait(6, 2), wait(4, 3), wait(5, 4)
	second.cancel()
	if err := <-second.done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	fourth.cancel()
	if err := <-fourth.done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	b.releaseBytes(10)
	for _, w := range []waiting{first, third} {
		if err := <-w.done; err != nil {
			t.Error(err)
		}
		w.cancel()
	}
	b.releaseBytes(6)
	b.releaseBytes(4)
	if b.free != 10 || b.first != nil || b.last != nil {
		t.Errorf("%d are free", b.free)
	}
	b.free = 0 // one that is served just as it gives up
	w := b.enqueueWaiter(3)
	b.releaseBytes(10)
	b.leaveQueue(w)
	last := wait(10, 0)
	if err := <-last.done; err != nil {
		t.Error(err)
	}
	last.cancel()
}
