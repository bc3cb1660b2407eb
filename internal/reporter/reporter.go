// Package reporter hands reports to a callback without holding a lock: the callback may block, and may call whatever
// reports to it. The work that reports goes on meanwhile.
//
// A callback that is slower than the reports misses some of them, but not the last one. It runs in one goroutine.
package reporter

import (
	"context"
	"sync"
)

// Reporter hands the latest report to a callback. It is safe for concurrent use.
type Reporter[T any] struct {
	call func(T)
	// due wakes the goroutine. ended is closed when it ends.
	due, ended chan struct{}

	mu      sync.Mutex
	latest  T
	stopped bool
	// reported and delivered count reports. The callback has returned from the last one of those that were delivered.
	reported, delivered int64
	// deliveredMore is closed, and replaced, when delivered grows.
	deliveredMore chan struct{}
}

// New returns a reporter for a callback, which may be nil. The caller must call Stop.
func New[T any](call func(T)) *Reporter[T] {
	if call == nil {
		call = func(T) {}
	}
	r := &Reporter[T]{call: call, due: make(chan struct{}, 1), ended: make(chan struct{}), deliveredMore: make(chan struct{})}
	go r.run()
	return r
}

func (r *Reporter[T]) run() {
	defer close(r.ended)
	for range r.due {
		r.mu.Lock()
		latest, number, pending := r.latest, r.reported, r.reported > r.delivered
		r.mu.Unlock()
		if !pending {
			continue
		}
		r.call(latest)
		r.mu.Lock()
		r.delivered = number
		close(r.deliveredMore)
		r.deliveredMore = make(chan struct{})
		r.mu.Unlock()
	}
}

// Report makes v the latest report. It does not wait. After Stop it does nothing.
func (r *Reporter[T]) Report(v T) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped {
		return
	}
	r.latest = v
	r.reported++
	select {
	case r.due <- struct{}{}:
	default: // The goroutine has yet to see what woke it last.
	}
}

// Flush returns when the callback has returned from the latest report, or when ctx ends. Call it without a lock, and not from the
// callback.
func (r *Reporter[T]) Flush(ctx context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for wanted := r.reported; r.delivered < wanted; {
		more := r.deliveredMore
		r.mu.Unlock()
		select {
		case <-more:
		case <-ctx.Done():
			wanted = 0
		}
		r.mu.Lock()
	}
}

// Stop ends the reporter. It returns when the callback has returned from the last report.
func (r *Reporter[T]) Stop() {
	r.mu.Lock()
	if !r.stopped {
		r.stopped = true
		close(r.due)
	}
	r.mu.Unlock()
	<-r.ended
}
