package tunnel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/varvebackup/varve/internal/errclass"
)

const (
	// socketBytes is how much is written at once below TLS: a frame and its TLS records, so that one system call carries
	// them.
	socketBytes = 160 << 10
	// maxUnprovenBytes is how much a peer may send before it has proven anything: a TLS handshake and a hello.
	maxUnprovenBytes = 64 << 10
	// recordBytes is the content of the largest TLS record.
	recordBytes = 16 << 10
)

var errUnprovenBytes = fmt.Errorf("%w: it sent more than %d bytes and no proof", ErrProtocol, maxUnprovenBytes)

// socket is the connection below TLS. Go's TLS writes record by record; the socket collects them. It does not collect what
// it reads: that was measured, and costs a copy for no gain.
type socket struct {
	net.Conn
	// received and sent count bytes. writing says that a write is under way.
	received, sent atomic.Int64
	writing        atomic.Bool
	proven         atomic.Bool

	mu  sync.Mutex // TLS answers key updates while frames are written
	out []byte
	// collect: writes stay in out until it is full or flushed.
	collect bool
}

func newSocket(c net.Conn) *socket { return &socket{Conn: c} }

func (s *socket) Read(b []byte) (int, error) {
	if !s.proven.Load() {
		left := maxUnprovenBytes - s.received.Load()
		if left <= 0 {
			return 0, errUnprovenBytes
		}
		b = b[:min(int64(len(b)), left)]
	}
	n, err := s.Conn.Read(b)
	s.received.Add(int64(n))
	return n, err
}

func (s *socket) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.collect {
		return s.writeThrough(b)
	}
	if len(s.out)+len(b) > cap(s.out) {
		if err := s.flushLocked(); err != nil {
			return 0, err
		}
	}
	if len(b) > cap(s.out) {
		return s.writeThrough(b)
	}
	s.out = append(s.out, b...)
	return len(b), nil
}

func (s *socket) writeThrough(b []byte) (int, error) {
	s.writing.Store(true)
	defer s.writing.Store(false)
	n, err := s.Conn.Write(b)
	s.sent.Add(int64(n))
	return n, err
}

func (s *socket) flushLocked() error {
	_, err := s.writeThrough(s.out)
	s.out = s.out[:0]
	return err
}

// flush sends what was collected, if it is at least that many bytes.
func (s *socket) flush(least int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.out) == 0 || len(s.out) < least {
		return nil
	}
	return s.flushLocked()
}

// enterSession ends the limits of the handshake.
func (s *socket) enterSession() {
	s.proven.Store(true)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.out, s.collect = make([]byte, 0, socketBytes), true
}

// frameWriter writes frames, one at a time. Who wants to write takes turns: first come, first served.
type frameWriter struct {
	// turn has one element while somebody writes. Go serves the senders that wait in order.
	turn    chan struct{}
	waiting atomic.Int32
	// to is the TLS connection, and socket what is below it.
	to     io.Writer
	socket *socket
	// scratch is for what goes into one TLS record; it belongs to who writes.
	scratch []byte
}

func newFrameWriter(to io.Writer, s *socket) *frameWriter {
	return &frameWriter{turn: make(chan struct{}, 1), to: to, socket: s, scratch: make([]byte, 0, recordBytes)}
}

// flushBytes is how much is collected before it is sent although more is to come.
const flushBytes = 64 << 10

// writeFrame writes a frame and its tail. With more, the caller promises to write again or to call flushFrames soon.
func (w *frameWriter) writeFrame(f frame, tail []byte, more bool) error {
	w.takeTurn()
	f.tail = uint32(len(tail))
	b := f.appendTo(w.scratch[:0])
	if len(b)+len(tail) <= recordBytes {
		b, tail = append(b, tail...), nil
	}
	return w.writeAndPass(b, tail, more)
}

// writeRaw writes frames that are encoded already.
func (w *frameWriter) writeRaw(frames []byte) error {
	w.takeTurn()
	return w.writeAndPass(frames, nil, false)
}

// flushFrames sends what was written with more.
func (w *frameWriter) flushFrames() error {
	w.takeTurn()
	return w.writeAndPass(nil, nil, false)
}

func (w *frameWriter) takeTurn() {
	w.waiting.Add(1)
	w.turn <- struct{}{}
	w.waiting.Add(-1)
}

// writeAndPass writes, and passes the turn on. Nothing that was written stays behind: the next one sends it, if there is
// one.
func (w *frameWriter) writeAndPass(head, tail []byte, more bool) error {
	defer func() { <-w.turn }()
	for _, part := range [2][]byte{head, tail} {
		if len(part) == 0 {
			continue
		}
		if _, err := w.to.Write(part); err != nil {
			return fmt.Errorf("write: %w", err)
		}
	}
	least := 0
	if more || w.waiting.Load() > 0 {
		least = flushBytes
	}
	if err := w.socket.flush(least); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}

// outbox sends small frames for goroutines that must not wait for the network. What waits is bounded by who puts in: the
// far end has a few frames for each of its requests, and a ping is put in only if nothing waits.
type outbox struct {
	mu      sync.Mutex
	waiting []byte
	wake    chan struct{}
}

func newOutbox() *outbox { return &outbox{wake: make(chan struct{}, 1)} }

func (o *outbox) addFrame(f frame) {
	o.mu.Lock()
	if f.kind != framePing || len(o.waiting) == 0 {
		o.waiting = f.appendTo(o.waiting)
	}
	o.mu.Unlock()
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// sendFrames sends what is put in, until ctx ends.
func (o *outbox) sendFrames(ctx context.Context, w *frameWriter) error {
	var batch []byte
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-o.wake:
		}
		o.mu.Lock()
		batch, o.waiting = o.waiting, batch[:0]
		o.mu.Unlock()
		if len(batch) == 0 {
			continue
		}
		if err := w.writeRaw(batch); err != nil {
			return err
		}
	}
}

// keepaliveMisses is after how many keepalives without a byte a connection is dead.
const keepaliveMisses = 3

var errSilent = errclass.New(errclass.Transient, "tunnel: nothing was heard for three keepalives")

var errStuck = errclass.New(errclass.Transient, "tunnel: the peer has taken nothing for three keepalives")

// keepAlive puts a ping into the outbox every interval, and fails if nothing has arrived for three of them, or if a write
// has not moved for as long. It counts intervals and not time, so that a process that was stopped for a while does not take
// its peer for dead. alive is called after each interval.
func keepAlive(ctx context.Context, s *socket, o *outbox, interval time.Duration, alive func()) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	received, sent := s.received.Load(), s.sent.Load()
	silent, stuck := 0, 0
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
		}
		silent, stuck = silent+1, stuck+1
		if now := s.received.Load(); now != received {
			received, silent = now, 0
		}
		if now := s.sent.Load(); now != sent || !s.writing.Load() {
			sent, stuck = now, 0
		}
		switch {
		case silent >= keepaliveMisses:
			return errSilent
		case stuck >= keepaliveMisses:
			return errStuck
		}
		o.addFrame(frame{kind: framePing})
		alive()
	}
}

// brokenError returns what the requests of a connection fail with that has ended with err.
func brokenError(err error) error {
	switch {
	case errors.Is(err, errclass.Transient):
		return err
	case errors.Is(err, context.Canceled): // of the server, and not of the request
		return errclass.Errorf(errclass.Transient, "the tunnel has ended")
	}
	return errclass.Errorf(errclass.Transient, "the connection to the launcher broke: %w", err)
}
