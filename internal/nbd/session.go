package nbd

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// session is one connection to the server, from accept to end.
type session struct {
	srv    *Server
	limits Limits
	log    *slog.Logger
	// nc is the connection without TLS. Other goroutines only set deadlines on it.
	nc       net.Conn
	cancel   context.CancelCauseFunc
	draining atomic.Bool

	// transmits means that the session has one of the places for sessions past their handshake. Server.mu guards it.
	transmits bool
	// began is when the session began, as returned by now.
	began int64
	// reads and writes bound the session's payloads. They are separate, so that writes that wait for a worker cannot
	// keep workers from reading.
	reads, writes *budget
	// busy counts requests from being queued to being answered, and one that waits for memory.
	busy atomic.Int32
	// moved is when a request last began or ended. sending is when the server began the piece of a reply that the
	// client has not taken yet; 0 if nothing is being sent.
	moved, sending atomic.Int64
}

func newSession(s *Server, nc net.Conn, cancel context.CancelCauseFunc) *session {
	l := s.Limits.withDefaults()
	return &session{
		srv: s, limits: l, log: s.logger(), nc: nc, cancel: cancel, began: monotonicNow(),
		reads: newBudget(l.MaxInFlightBytes / 2), writes: newBudget(l.MaxInFlightBytes / 2),
	}
}

// interruptIO ends reads and writes under way.
func (c *session) interruptIO() { c.nc.SetDeadline(longAgo) } //nolint:errcheck // it has ended already

// stopReceiving lets no further request in.
func (c *session) stopReceiving() {
	c.draining.Store(true)
	c.nc.SetReadDeadline(longAgo) //nolint:errcheck // it has ended already
}

// serveConnection does everything but close nc.
func (c *session) serveConnection(ctx context.Context) error {
	h := &serverHandshake{wire: newWire(c.nc), srv: c.srv, limits: c.limits, session: c}
	err := c.handleHandshake(ctx, h)
	if err == nil {
		err = c.transmitUntilEnd(ctx, h)
	}
	if secure, ok := h.nc.(*tls.Conn); ok && err == nil {
		secure.Close() //nolint:errcheck // the client may have closed it first
	}
	if cause := context.Cause(ctx); errors.Is(cause, errPlaceTaken) || errors.Is(cause, errStalled) {
		return cause
	}
	if c.isOrdinaryEnd(ctx, err) {
		return nil
	}
	return err
}

// isOrdinaryEnd reports whether the end of a connection is nothing to complain about.
func (c *session) isOrdinaryEnd(ctx context.Context, err error) bool {
	switch {
	case errors.Is(err, ErrProtocol):
		return false
	case errors.Is(err, errAborted), errors.Is(err, io.EOF), errors.Is(err, unix.ECONNRESET), errors.Is(err, unix.EPIPE):
		return true
	}
	return ctx.Err() != nil || c.draining.Load() && errors.Is(err, os.ErrDeadlineExceeded)
}

func (c *session) handleHandshake(ctx context.Context, h *serverHandshake) error {
	ctx, cancel := context.WithTimeout(ctx, c.limits.HandshakeTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, c.interruptIO)
	err := h.runHandshake(ctx)
	if !stop() {
		if err == nil {
			h.export.releaseExport()
		}
		err = errors.Join(context.Cause(ctx), err)
	}
	if err != nil {
		return fmt.Errorf("handshake: %w", err)
	}
	return nil
}

// maxQueued is how many requests of a connection wait for a worker. They take only their headers, and what the write
// budget allows.
const maxQueued = 1 << 10

// transmission is a session in the transmission phase. The goroutine of transmit reads requests; workers answer them.
type transmission struct {
	*session
	export   *Export
	size     int64
	flags    TransmissionFlags
	headers  headers
	contexts []string
	br       *bufio.Reader

	jobs  chan *job
	spare chan *job
	// made and workers belong to the reader.
	made, workers int
	running       sync.WaitGroup

	mu      sync.Mutex // guards bw
	bw      *bufio.Writer
	waiting atomic.Int32
}

// job is one request.
type job struct {
	req request
	// payload is the data of a write.
	payload *buffer
	cost    int64
	// errno is nonzero if the request is refused.
	errno uint32
	head  []byte
	runs  []descriptor
}

func (c *session) transmitUntilEnd(ctx context.Context, h *serverHandshake) error {
	defer h.export.releaseExport()
	t := &transmission{
		session: c, export: h.export, size: h.export.Backend.Size(), flags: h.transmissionFlags(h.export), headers: h.headers, contexts: h.selected,
		br: h.br, bw: bufio.NewWriterSize(h.nc, writeBufferBytes),
		jobs: make(chan *job, maxQueued), spare: make(chan *job, maxQueued),
	}
	err := t.receiveRequests(ctx)
	if err != nil && !c.draining.Load() {
		c.cancel(nil) // The client is gone, so nobody wants the answers.
	}
	close(t.jobs)
	t.running.Wait()
	return err
}

// receiveRequests reads requests until the client's goodbye, which is no error, or until the connection ends.
func (t *transmission) receiveRequests(ctx context.Context) error {
	head := make([]byte, t.headers.requestSize())
	for {
		if _, err := io.ReadFull(t.br, head); err != nil {
			return fmt.Errorf("read request: %w", err)
		}
		req, err := parseRequest(head, t.headers)
		if err != nil {
			return err
		}
		if req.cmd == cmdDisc {
			return nil
		}
		j, err := t.spareJob(ctx)
		if err != nil {
			return err
		}
		t.moved.Store(monotonicNow())
		j.req = req
		j.errno = t.refusalErrno(req)
		if err := t.receivePayload(ctx, j); err != nil {
			return fmt.Errorf("read payload: %w", err)
		}
		t.dispatchJob(ctx, j)
	}
}

// spareJob returns a spare job, or a new one while there are fewer than maxQueued.
func (t *transmission) spareJob(ctx context.Context) (*job, error) {
	select {
	case j := <-t.spare:
		return j, nil
	default:
	}
	if t.made < maxQueued {
		t.made++
		return &job{head: make([]byte, 0, 64)}, nil
	}
	select {
	case j := <-t.spare:
		return j, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// receivePayload reads what follows the header, and drops it if the request is refused. A write has a payload even if
// NBD_CMD_FLAG_PAYLOAD_LEN, which should say so, is not set: QEMU's client never sets it.
func (t *transmission) receivePayload(ctx context.Context, j *job) error {
	n := j.req.length
	if j.req.cmd != cmdWrite && (t.headers != extendedHeaders || j.req.flags&cmdFlagPayloadLen == 0) {
		return nil
	}
	if j.errno != 0 {
		if n > maxBufferBytes {
			return protocolError("%d bytes with a request to %v", n, j.req.cmd)
		}
		_, err := t.br.Discard(int(n))
		return err
	}
	t.busy.Add(1) // waiting for memory, not for the client
	cost, err := takeMemory(ctx, t.writes, t.srv.room.writes, bufferBytes(int64(n)))
	t.moved.Store(monotonicNow())
	t.busy.Add(-1)
	if err != nil {
		return err
	}
	j.cost, j.payload = cost, t.srv.buffers.getBuffer(int64(n))
	_, err = io.ReadFull(t.br, j.payload.data)
	return err
}

// dispatchJob gives j to the workers. While all of them are busy, it starts one more, up to the limit.
func (t *transmission) dispatchJob(ctx context.Context, j *job) {
	if n := t.busy.Add(1); t.workers < t.limits.Workers && int(n) > t.workers {
		t.workers++
		t.running.Go(func() { t.runWorker(ctx) })
	}
	t.jobs <- j
}

func (t *transmission) runWorker(ctx context.Context) {
	var runs []descriptor // Kept by the worker, because there are many more jobs than workers.
	for j := range t.jobs {
		j.runs = runs
		if ctx.Err() == nil {
			if err := t.answerRequest(ctx, j); err != nil {
				t.log.Debug("NBD client is gone", "error", err)
				t.cancel(nil)
			}
		}
		t.srv.buffers.putBuffer(j.payload)
		giveBack(t.writes, t.srv.room.writes, j.cost)
		runs = j.runs
		j.payload, j.cost, j.errno, j.runs = nil, 0, 0, nil
		t.moved.Store(monotonicNow())
		t.busy.Add(-1)
		t.spare <- j
	}
}
