package nbd

import (
	"context"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/varvebackup/varve/internal/extent"
)

// call is one call of the user, which has one or more requests. It ends when all of them have.
type call struct {
	left atomic.Int32
	done chan struct{}
	mu   sync.Mutex
	err  error
}

// addRequest counts one more request.
func (a *call) addRequest() { a.left.Add(1) }

// finishRequest ends one request; the first error stays.
func (a *call) finishRequest(err error) {
	if err != nil {
		a.mu.Lock()
		if a.err == nil {
			a.err = err
		}
		a.mu.Unlock()
	}
	if a.left.Add(-1) == 0 {
		a.done <- struct{}{}
	}
}

// slotState is how far a request has got.
type slotState uint8

const (
	slotFree    slotState = iota
	slotQueued            // waits for its connection's writer
	slotWriting           // the writer sends it
	slotSent              // the server has it
)

// slot is the place of one request in flight. There is a fixed number of slots, so that a request allocates nothing. A
// slot becomes free when the server has answered, even if the caller has given up before: until then the handle is in
// use.
//
// mu guards all fields except the reader's, which belong to the reader of conn while the state is slotSent.
type slot struct {
	mu    sync.Mutex
	state slotState
	conn  *clientConn
	// handle has the slot's number in its low 16 bits; the rest changes with each use.
	handle uint64
	// call is nil once the caller has given up.
	call *call
	req  request
	// data is the memory to read into, or to write from. It belongs to the caller, and is touched only while call is
	// set.
	data   []byte
	status *statusReply
	cost   int64
	// busy: the reader is writing to data. abandoned: the caller waits for that to end, or for the writer to finish.
	busy, abandoned bool
	// early: the reply came before the request was fully written; failed is what it said.
	early  bool
	failed error

	// The reader's fields.
	covered coverage
	refusal *Error
}

const slotMask = 1<<16 - 1

// beginCall reuses a spare call, or makes one. It counts the caller's own hold on it.
func (c *Client) beginCall() *call {
	var a *call
	select {
	case a = <-c.calls:
	default:
		a = &call{done: make(chan struct{}, 1)}
	}
	a.err = nil
	a.left.Store(1)
	return a
}

// awaitCall ends the caller's hold and waits for the requests of a. If ctx ends first, it abandons them. After awaitCall,
// nobody touches the caller's memory.
func (c *Client) awaitCall(ctx context.Context, a *call) error {
	a.finishRequest(nil)
	select {
	case <-a.done:
	case <-ctx.Done():
		c.abandonCall(a, context.Cause(ctx))
	}
	err := a.err
	select {
	case c.calls <- a:
	default:
	}
	return err
}

// abandonGrace is how long sending the rest of a write's payload may take. After that, nothing is left but to end the
// connection.
const abandonGrace = 250 * time.Millisecond

// abandonCall makes every request of a let go of the caller's memory.
func (c *Client) abandonCall(a *call, cause error) {
	for _, s := range c.slots {
		s.abandonFor(a, cause)
	}
	grace := time.NewTimer(c.grace)
	defer grace.Stop()
	select {
	case <-a.done:
	case <-grace.C:
		c.failWith(cause)
		<-a.done
	}
}

// abandonFor detaches the slot from a. If its data is in use right now, abandonFor cuts that short, and whoever uses it ends
// the request.
func (s *slot) abandonFor(a *call, cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.call != a {
		return
	}
	switch {
	case s.busy:
		s.abandoned, s.failed = true, cause
		s.conn.nc.SetReadDeadline(longAgo) //nolint:errcheck // then the read ends with the connection
	case s.state == slotWriting && s.req.cmd == cmdWrite:
		s.abandoned, s.failed = true, cause
	default:
		s.detachLocked(cause)
	}
}

// detachLocked ends the request for its caller. The caller holds mu.
func (s *slot) detachLocked(cause error) {
	a := s.call
	s.call, s.data, s.status, s.busy, s.abandoned = nil, nil, nil, false, false
	a.finishRequest(cause)
}

// submitRequest sends one request of a. As with a read, the data of a write stays the caller's until a has ended.
func (c *Client) submitRequest(ctx context.Context, a *call, r request, data []byte, status *statusReply) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	cost, err := c.budget.acquireBytes(ctx, int64(len(data)))
	if err != nil {
		return err
	}
	var s *slot
	select {
	case s = <-c.free:
		if err = c.Err(); err != nil { // nobody empties the queue any more
			c.free <- s
		}
	case <-c.dead:
		err = c.cause
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		c.budget.releaseBytes(cost)
		return err
	}
	a.addRequest()
	k := c.conns[int(c.next.Add(1))%len(c.conns)]
	s.mu.Lock()
	s.handle += slotMask + 1
	r.handle = s.handle
	s.state, s.conn, s.call, s.req, s.data, s.status, s.cost = slotQueued, k, a, r, data, status, cost
	s.early, s.failed, s.refusal = false, nil, nil
	s.covered.clearRuns()
	s.mu.Unlock()
	k.queue <- s // There is room for every slot.
	if c.Err() != nil {
		<-k.ended
		c.buryRequest(s, k, r.handle) // The connection's endInFlight may have missed it.
	}
	return nil
}

// completeSlot ends the request with the server's answer, or with the connection's end, and frees the slot.
func (c *Client) completeSlot(s *slot, err error) {
	s.mu.Lock()
	if s.state == slotWriting {
		s.early, s.failed = true, err
		s.mu.Unlock()
		return
	}
	c.finishSlotLocked(s, err)
}

// finishSlotLocked is completeSlot for a caller that holds mu; it unlocks mu.
func (c *Client) finishSlotLocked(s *slot, err error) {
	a, cost := s.call, s.cost
	s.state, s.call, s.data, s.status, s.busy, s.abandoned = slotFree, nil, nil, nil, false, false
	s.mu.Unlock()
	c.budget.releaseBytes(cost)
	c.free <- s
	if a != nil {
		a.finishRequest(err)
	}
}

// buryRequest ends the request if the slot still has the one with this handle. The client is dead, and k's reader and writer
// have ended.
func (c *Client) buryRequest(s *slot, k *clientConn, handle uint64) {
	s.mu.Lock()
	if s.conn != k || s.handle != handle || s.state == slotFree {
		s.mu.Unlock()
		return
	}
	c.finishSlotLocked(s, c.cause)
}

// refuseCall returns an error about a call that is not sent.
func refuseCall(cmd command, e extent.Extent, errno syscall.Errno, message string) error {
	return &Error{Op: cmd.String(), Extent: e, Errno: errno, Message: message, Offset: -1}
}
