package nbd

import (
	"context"
	"sync"
)

// budget bounds the number of bytes that are in use at once. Waiters are served in order. It allocates only when its
// queue is longer than ever before.
type budget struct {
	mu          sync.Mutex
	total, free int64
	first, last *waiter
	spare       *waiter
}

type waiter struct {
	n     int64
	ready chan struct{}
	next  *waiter
}

func newBudget(n int64) *budget { return &budget{total: n, free: n} }

// acquireBytes takes n bytes, or all of the budget if n is more, and returns how many to release.
func (b *budget) acquireBytes(ctx context.Context, n int64) (int64, error) {
	b.mu.Lock()
	n = min(n, b.total)
	if b.first == nil && b.free >= n {
		b.free -= n
		b.mu.Unlock()
		return n, nil
	}
	w := b.enqueueWaiter(n)
	b.mu.Unlock()
	select {
	case <-w.ready:
		b.mu.Lock()
		b.recycleWaiter(w)
		b.mu.Unlock()
		return n, nil
	case <-ctx.Done():
		b.leaveQueue(w)
		return 0, context.Cause(ctx)
	}
}

// releaseBytes gives back what acquireBytes returned.
func (b *budget) releaseBytes(n int64) {
	if n == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.free += n
	b.serveWaiters()
}

// usedBytes returns how many bytes are taken, including those whose holder still waits for another budget.
func (b *budget) usedBytes() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.total - b.free
}

// hasWaiters reports whether somebody waits.
func (b *budget) hasWaiters() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.first != nil
}

// serveWaiters serves the waiters in order. The caller holds mu, here and below.
func (b *budget) serveWaiters() {
	for b.first != nil && b.first.n <= b.free {
		w := b.first
		b.free -= w.n
		if b.first = w.next; b.first == nil {
			b.last = nil
		}
		w.ready <- struct{}{}
	}
}

func (b *budget) enqueueWaiter(n int64) *waiter {
	w := b.spare
	if w == nil {
		w = &waiter{ready: make(chan struct{}, 1)}
	} else {
		b.spare = w.next
	}
	w.n, w.next = n, nil
	if b.last == nil {
		b.first = w
	} else {
		b.last.next = w
	}
	b.last = w
	return w
}

func (b *budget) recycleWaiter(w *waiter) {
	w.next = b.spare
	b.spare = w
}

// leaveQueue removes w from the queue, or gives back what w was given in the meantime.
func (b *budget) leaveQueue(w *waiter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-w.ready:
		b.free += w.n
	default:
		b.removeWaiter(w)
	}
	b.recycleWaiter(w)
	b.serveWaiters()
}

func (b *budget) removeWaiter(w *waiter) {
	var before *waiter
	for at := b.first; at != w; at = at.next {
		before = at
	}
	if before == nil {
		b.first = w.next
	} else {
		before.next = w.next
	}
	if b.last == w {
		b.last = before
	}
}
