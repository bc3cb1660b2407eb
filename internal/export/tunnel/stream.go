package tunnel

import (
	"context"
	"sync"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/extent"
)

// stream is a request in flight, as the far end sees it. The session's reader puts in what arrives, and one goroutine
// takes it out.
type stream struct {
	session *session
	asked   frame
	// wake has an element when something has changed for who takes.
	wake chan struct{}

	mu sync.Mutex
	// arrivals[taken:] have arrived and were not taken.
	arrivals []arrival
	taken    int
	// at is where what has arrived ends.
	at int64
	// credit is what the launcher may send still, and owed what was taken and not given back as credit. window is what they
	// amount to, with what has arrived.
	credit, owed, window int64
	// starved says that who takes has waited for the launcher since the last credit was given.
	starved bool
	ended   bool
	err     error
	// abandoned: nobody takes any more.
	abandoned bool
}

// arrival is a piece of content, or a page.
type arrival struct {
	extent   extent.Extent
	checksum uint32
	// data is nil for zeroes.
	data *buffer
}

func (a arrival) cost() int64 {
	if a.data == nil {
		return bufferBytes(0)
	}
	return int64(cap(a.data.data))
}

// expectPiece checks a piece that is about to arrive, and reports whether anybody wants it.
func (st *stream) expectPiece(f frame) (wanted bool, err error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.asked.kind != frameRead {
		return false, protocolError("content for a %s request", frameShapes[st.asked.kind].name)
	}
	if !st.asked.extent.Contains(f.extent) || f.extent.Offset < st.at || st.asked.scope == export.Everything && f.extent.Offset != st.at {
		return false, protocolError("content at %v after %d, of %v", f.extent, st.at, st.asked.extent)
	}
	st.at = f.extent.End()
	if st.credit -= bufferBytes(int(f.tail)); st.credit < 0 {
		return false, protocolError("content at %v without credit", f.extent)
	}
	return !st.abandoned, nil
}

// checkComplete reports whether a request that ended without an error has got what it asked for.
func (st *stream) checkComplete() error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.asked.kind == frameRegions || st.asked.scope == export.Everything && st.at != st.asked.extent.End() {
		return protocolError("the request for %v ended at %d", st.asked.extent, st.at)
	}
	return nil
}

func (st *stream) addArrival(a arrival) {
	st.mu.Lock()
	if st.abandoned {
		st.session.server.buffers.putBuffer(a.data)
	} else {
		st.arrivals = append(st.arrivals, a)
	}
	st.mu.Unlock()
	st.wakeTaker()
}

func (st *stream) endWith(err error) {
	st.mu.Lock()
	st.ended, st.err = true, err
	st.mu.Unlock()
	st.wakeTaker()
}

func (st *stream) wakeTaker() {
	select {
	case st.wake <- struct{}{}:
	default:
	}
}

// takeArrival returns what has arrived next, and waits for it. The caller gives it back with giveBack. more is false at the
// end of the request.
func (st *stream) takeArrival(ctx context.Context) (a arrival, more bool, err error) {
	for {
		if a, more, ended, err := st.tryTake(); more || ended {
			return a, more, err
		}
		select {
		case <-st.wake:
		case <-ctx.Done():
			return arrival{}, false, context.Cause(ctx)
		}
	}
}

func (st *stream) tryTake() (a arrival, more, ended bool, err error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.taken < len(st.arrivals) {
		a = st.arrivals[st.taken]
		if st.taken++; st.taken == len(st.arrivals) {
			st.arrivals, st.taken = st.arrivals[:0], 0
		}
		return a, true, false, nil
	}
	if st.at > st.asked.extent.Offset { // the first wait says nothing about the reader
		st.starved = true
	}
	return arrival{}, false, st.ended, st.err
}

// giveBack frees what takeArrival returned, and gives the launcher credit for it.
func (st *stream) giveBack(a arrival) {
	cost := a.cost()
	st.session.server.buffers.putBuffer(a.data)
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.asked.kind != frameRead || st.ended {
		return
	}
	st.owed += cost
	if st.owed < st.window/4 {
		return
	}
	grant := st.owed
	if st.starved {
		more := st.session.server.borrowWindow(st.window, st.session.limits)
		st.window += more
		grant += more
	}
	st.owed, st.starved = 0, false
	st.credit += grant
	st.session.outbox.addFrame(frame{kind: frameCredit, stream: st.asked.stream, count: uint32(grant)})
}

// borrowWindow returns by how much a window may grow: to twice its size, if there is memory left.
func (s *Server) borrowWindow(window int64, limits Limits) int64 {
	more := min(window, limits.WindowBytes-window)
	if more <= 0 {
		return 0
	}
	if s.shared.Add(more) > limits.SharedBytes {
		s.shared.Add(-more)
		return 0
	}
	return more
}

// abandon ends the taking. What has arrived is freed, what arrives from now on is dropped, and another request may have the
// place.
func (st *stream) abandon() {
	defer func() { <-st.session.server.places }()
	st.mu.Lock()
	defer st.mu.Unlock()
	st.abandoned = true
	for _, a := range st.arrivals[st.taken:] {
		st.session.server.buffers.putBuffer(a.data)
	}
	st.arrivals, st.taken = nil, 0
	if borrowed := st.window - minCreditBytes; borrowed > 0 {
		st.session.server.shared.Add(-borrowed)
	}
	if !st.ended {
		st.session.outbox.addFrame(frame{kind: frameCancel, stream: st.asked.stream})
	}
}

// ErrChecksum means that data is not what the launcher read. Its class is errclass.Corrupt.
var ErrChecksum = errclass.New(errclass.Corrupt, "the data is not what the launcher read: its checksum differs")
