package domain

import "sync"

// queueLimit is how many events may wait for a reader.
const queueLimit = 256

// queue carries events from libvirt's loop, which must never wait, to a reader, which may. If the limit is reached,
// the waiting events are replaced by one EventResync, and newer events follow it.
type queue struct {
	// before is called with each event right before a reader can receive it.
	before func(Event)

	out  chan Event
	wake chan struct{}
	done chan struct{}

	mu      sync.Mutex
	limit   int
	pending []Event
	closed  bool
	pump    sync.WaitGroup
}

func newQueue(limit int, before func(Event)) *queue {
	q := &queue{before: before, out: make(chan Event), wake: make(chan struct{}, 1), done: make(chan struct{}), limit: limit}
	q.pump.Go(q.run)
	return q
}

// push adds an event. It never blocks.
func (q *queue) push(e Event) {
	q.mu.Lock()
	if len(q.pending) >= q.limit {
		q.pending = append(q.pending[:0], Event{Kind: EventResync})
	}
	q.pending = append(q.pending, e)
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// close drops the waiting events and closes the channel out.
func (q *queue) close() {
	q.mu.Lock()
	first := !q.closed
	q.closed = true
	q.mu.Unlock()
	if first {
		close(q.done)
	}
	q.pump.Wait()
}

func (q *queue) run() {
	defer close(q.out)
	for {
		e, ok := q.take()
		if !ok {
			select {
			case <-q.wake:
			case <-q.done:
				return
			}
			continue
		}
		q.before(e)
		select {
		case q.out <- e:
		case <-q.done:
			return
		}
	}
}

func (q *queue) take() (Event, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.pending) == 0 {
		return Event{}, false
	}
	e := q.pending[0]
	q.pending = q.pending[1:]
	return e, true
}
