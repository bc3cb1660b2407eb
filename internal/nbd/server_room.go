package nbd

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"
)

var (
	errPlaceTaken = errors.New("nbd: the server needed the place of this idle client")
	errStalled    = errors.New("nbd: the server needed the memory that this client held and did not take or send")
)

// room is what the connections of a server share. Server.mu guards everything but the budgets.
type room struct {
	// reads and writes bound the payloads of all connections, as a session's bound its own, and for the same reason.
	reads, writes *budget
	// transmitting is the number of sessions past their handshake.
	transmitting int
	// sentry is the timer of the search for stalled clients, set while there are sessions.
	sentry *time.Timer
}

// maxLeaving bounds the sessions that have lost their place and have not ended yet: ending takes a moment.
const maxLeaving = 64

// addSession lets c begin its handshake. If too many do, c takes the place of the one whose handshake has lasted
// longest. So clients that only connect never cost an admitted client its place.
func (s *Server) addSession(c *session) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining {
		return errors.New("the server is shutting down")
	}
	if s.sessions == nil {
		s.sessions = map[*session]struct{}{}
		s.room.reads, s.room.writes = newBudget(c.limits.MaxMemoryBytes/2), newBudget(c.limits.MaxMemoryBytes/2)
	}
	if shaking := len(s.sessions) - s.room.transmitting; shaking >= c.limits.Connections+maxLeaving {
		return fmt.Errorf("more than %d connections", c.limits.Connections)
	} else if shaking >= c.limits.Connections {
		var oldest *session
		for other := range s.sessions {
			if !other.transmits && (oldest == nil || other.began < oldest.began) {
				oldest = other
			}
		}
		oldest.cancel(errPlaceTaken)
	}
	s.sessions[c] = struct{}{}
	s.running.Add(1)
	if s.room.sentry == nil {
		s.room.sentry = time.AfterFunc(c.limits.StallTimeout/2, func() { s.endStalled(c.limits) })
	}
	return nil
}

func (s *Server) removeSession(c *session) {
	s.mu.Lock()
	delete(s.sessions, c)
	if c.transmits {
		s.room.transmitting--
	}
	s.mu.Unlock()
	s.running.Done()
}

// admitSession lets c transmit, if need be in the place of the client that has been idle longest.
func (s *Server) admitSession(c *session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.room.transmitting >= c.limits.Connections {
		var idlest *session
		since := monotonicNow() - int64(c.limits.IdleTimeout)
		for other := range s.sessions {
			if at := other.waitsSince(); other.transmits && at <= since {
				idlest, since = other, at
			}
		}
		if idlest == nil {
			return false
		}
		idlest.cancel(errPlaceTaken)
		idlest.transmits = false // c takes its place
		s.room.transmitting--
	}
	c.moved.Store(monotonicNow())
	c.transmits = true
	s.room.transmitting++
	return true
}

// endStalled ends clients that hold memory that others wait for, and have neither taken nor sent anything for too long.
func (s *Server) endStalled(l Limits) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.sessions) == 0 {
		s.room.sentry = nil
		return
	}
	reads, writes := s.room.reads.hasWaiters(), s.room.writes.hasWaiters()
	for c := range s.sessions {
		if c.waitsSince() <= monotonicNow()-int64(l.StallTimeout) && (reads && c.reads.usedBytes() > 0 || writes && c.writes.usedBytes() > 0) {
			c.cancel(errStalled)
		}
	}
	s.room.sentry.Reset(l.StallTimeout / 2)
}

// began is about when this process started. Connections use the system's clock, because their deadlines do.
var began = time.Now() //nolint:forbidigo // see above

// monotonicNow returns a time that only grows, in nanoseconds.
func monotonicNow() int64 { return int64(time.Since(began)) } //nolint:forbidigo // see began

// waitsSince returns the time since which the server has waited for the client and nothing else. It returns the far
// future if the server does not.
func (c *session) waitsSince() int64 {
	if sending := c.sending.Load(); sending != 0 {
		return sending
	}
	if c.busy.Load() > 0 {
		return math.MaxInt64
	}
	return c.moved.Load()
}

// takeMemory takes n bytes from the session's own budget, and then from the one that all sessions share.
func takeMemory(ctx context.Context, own, shared *budget, n int64) (int64, error) {
	n, err := own.acquireBytes(ctx, n)
	if err != nil {
		return 0, err
	}
	if _, err := shared.acquireBytes(ctx, n); err != nil {
		own.releaseBytes(n)
		return 0, err
	}
	return n, nil
}

// giveBack releases what take returned.
func giveBack(own, shared *budget, n int64) {
	own.releaseBytes(n)
	shared.releaseBytes(n)
}
