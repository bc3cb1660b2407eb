package nbd

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/varvebackup/varve/internal/guard"
)

// writeBufferBytes is the buffer in which the headers of waiting requests are batched.
const writeBufferBytes = 16 << 10

// scratchBytes is the buffer for data that nobody waits for any more, and for payloads that are decoded.
const scratchBytes = 32 << 10

// clientConn is one connection. Its reader and its writer are a goroutine each; run is a third one, which waits for
// both.
type clientConn struct {
	c       *Client
	nc      net.Conn
	br      *bufio.Reader
	bw      *bufio.Writer
	headers headers
	// index maps the connection's own context IDs to places in Client.contexts.
	index   map[uint32]int
	queue   chan *slot
	scratch []byte
	// leaving: NBD_CMD_DISC is being sent, so that the end of the connection is no failure.
	leaving atomic.Bool
	ended   chan struct{}
}

func newClientConn(c *Client, h *clientHandshake) *clientConn {
	k := &clientConn{
		c: c, nc: h.nc, br: h.br, bw: bufio.NewWriterSize(h.nc, writeBufferBytes), headers: h.headers,
		index: make(map[uint32]int, len(c.contexts)),
		// One more than there are slots, for the goodbye.
		queue: make(chan *slot, cap(c.free)+1), scratch: make([]byte, scratchBytes), ended: make(chan struct{}),
	}
	for i, name := range c.contexts {
		k.index[h.ids[name]] = i
	}
	return k
}

// runToEnd runs the connection to its end, and then buries what was in flight on it.
func (k *clientConn) runToEnd() {
	defer close(k.ended)
	reading := make(chan error, 1)
	writing := make(chan error, 1)
	stop := make(chan struct{})
	go func() { reading <- guard.Call(k.readAll) }()
	go func() { writing <- k.failIfPanicked(guard.Call(func() error { return k.writeAll(stop) })) }()
	// If the writer fails, it fails the client, which also ends the reader.
	err := <-reading
	close(stop)
	if err != nil {
		k.c.failWith(fmt.Errorf("NBD connection: %w", err))
	}
	if err := <-writing; err != nil {
		k.c.failWith(fmt.Errorf("NBD connection: %w", err))
	}
	if err := k.closeConnection(); err != nil && k.c.Err() == nil {
		k.c.failWith(fmt.Errorf("close NBD connection: %w", err))
	}
	k.endInFlight()
}

// failIfPanicked ends the client if its writer has panicked, and with that the reader.
func (k *clientConn) failIfPanicked(err error) error {
	var panicked *guard.PanicError
	if errors.As(err, &panicked) {
		k.c.failWith(fmt.Errorf("NBD connection: %w", err))
	}
	return err
}

// endInFlight ends what is in flight on a connection that has ended.
func (k *clientConn) endInFlight() {
	if k.c.Err() == nil {
		return // It ended after a goodbye, so nothing is in flight.
	}
	for _, s := range k.c.slots {
		s.mu.Lock()
		handle := s.handle
		s.mu.Unlock()
		k.c.buryRequest(s, k, handle)
	}
}

// closeConnection ends the TLS session in order only if the connection ended in order: a peer that reads nothing would delay it.
func (k *clientConn) closeConnection() error {
	if secure, ok := k.nc.(*tls.Conn); ok && k.c.Err() != nil {
		return secure.NetConn().Close()
	}
	err := k.nc.Close()
	if k.leaving.Load() {
		return nil // The server may have closed it first.
	}
	return err
}

// writeAll sends what is queued until the reader has ended.
func (k *clientConn) writeAll(stop <-chan struct{}) error {
	for {
		select {
		case <-stop:
			return nil
		case <-k.c.dead:
			return nil
		case s := <-k.queue:
			if err := k.writeOne(s); err != nil {
				err = fmt.Errorf("write: %w", err)
				k.c.failWith(fmt.Errorf("NBD connection: %w", err))
				return err
			}
		}
	}
}

// writeOne sends one request; nil is the goodbye. It flushes the buffer when nothing else waits.
func (k *clientConn) writeOne(s *slot) error {
	if s == nil {
		k.leaving.Store(true)
		if _, err := k.bw.Write(request{cmd: cmdDisc}.appendTo(k.bw.AvailableBuffer(), k.headers)); err != nil {
			return err
		}
		return k.bw.Flush()
	}
	s.mu.Lock()
	if s.call == nil { // Given up before it was sent, so the server never sees it.
		k.c.finishSlotLocked(s, nil)
		return k.flushIfIdle()
	}
	s.state = slotWriting
	req, data := s.req, s.data
	if req.cmd != cmdWrite {
		data = nil
	}
	s.mu.Unlock()
	if err := k.writeRequest(req, data); err != nil {
		s.mu.Lock()
		s.state = slotSent
		s.mu.Unlock()
		return err
	}
	s.mu.Lock()
	s.state = slotSent
	if s.early {
		k.c.finishSlotLocked(s, s.failed)
		return k.flushIfIdle()
	}
	if s.abandoned {
		s.detachLocked(s.failed)
	}
	s.mu.Unlock()
	return k.flushIfIdle()
}

func (k *clientConn) writeRequest(req request, data []byte) error {
	if k.bw.Available() < extendedRequestBytes {
		if err := k.bw.Flush(); err != nil {
			return err
		}
	}
	if _, err := k.bw.Write(req.appendTo(k.bw.AvailableBuffer(), k.headers)); err != nil {
		return err
	}
	_, err := k.bw.Write(data)
	return err
}

func (k *clientConn) flushIfIdle() error {
	if len(k.queue) > 0 {
		return nil
	}
	return k.bw.Flush()
}

// readAll handles replies until the connection ends. An end after the goodbye is no error.
func (k *clientConn) readAll() error {
	for {
		err := k.readReply()
		switch {
		case err == nil:
			continue
		case k.leaving.Load() && !errors.Is(err, ErrProtocol):
			return nil
		case errors.Is(err, io.EOF):
			return fmt.Errorf("the server closed it: %w", io.ErrUnexpectedEOF)
		}
		return err
	}
}

// readFull reads until b is full.
func (k *clientConn) readFull(b []byte) error {
	_, err := io.ReadFull(k.br, b)
	return err
}

// discardBytes reads and drops n bytes.
func (k *clientConn) discardBytes(n uint64) error {
	for n > 0 {
		part := k.scratch[:min(n, scratchBytes)]
		if err := k.readFull(part); err != nil {
			return err
		}
		n -= uint64(len(part))
	}
	return nil
}

// fillSlot reads n bytes into the slot's data from at on. If the caller gives up meanwhile, it reads and drops the rest.
func (k *clientConn) fillSlot(s *slot, at, n uint64) error {
	for n > 0 {
		dst := k.lendMemory(s, at, n)
		if dst == nil {
			return k.discardBytes(n)
		}
		m, err := k.br.Read(dst)
		at, n = at+uint64(m), n-uint64(m)
		if gone := k.giveBack(s); gone && errors.Is(err, os.ErrDeadlineExceeded) {
			err = k.c.Err() // The deadline was for this read only, unless the client died.
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// lendMemory returns the part of the caller's memory to read into, or nil if the caller has given up.
func (k *clientConn) lendMemory(s *slot, at, n uint64) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.call == nil {
		return nil
	}
	s.busy = true
	return s.data[at : at+n]
}

// giveBack ends what lendMemory began, and reports whether the caller gave up in between. Such a caller has cut the read
// short with a deadline. giveBack clears that deadline under the same lock, so that none is lost and none stays.
func (k *clientConn) giveBack(s *slot) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy = false
	if !s.abandoned {
		return false
	}
	k.nc.SetReadDeadline(time.Time{}) //nolint:errcheck // then the next read says what is wrong
	if k.c.Err() != nil {
		k.nc.SetReadDeadline(longAgo) //nolint:errcheck // it may have been failWith's deadline that was cleared
	}
	s.detachLocked(s.failed)
	return true
}
