package tunnel

import (
	"context"
	"io"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/varvebackup/varve/internal/export"
)

// session is the far end's side of one connection.
type session struct {
	server *Server
	limits Limits
	writer *frameWriter
	reader *frameReader
	outbox *outbox
	socket *socket
	cancel context.CancelCauseFunc
	// infos and slots are set before the session is up. slots has an element for each request that the launcher has not
	// ended.
	infos []export.Info
	slots chan struct{}
	// ended is closed when the session has ended, and cause is set before.
	ended chan struct{}
	cause error
	// scratch is for data that nobody waits for any more.
	scratch []byte

	mu      sync.Mutex
	streams map[uint32]*stream
	number  uint32
}

func newSession(s *Server, c io.ReadWriter, socket *socket, limits Limits, cancel context.CancelCauseFunc) *session {
	return &session{
		server: s, limits: limits, writer: newFrameWriter(c, socket), reader: &frameReader{from: c, launcher: true}, outbox: newOutbox(), socket: socket,
		cancel: cancel, ended: make(chan struct{}), streams: map[uint32]*stream{},
	}
}

// runToEnd serves until the connection or ctx ends, and then fails what was in flight.
func (s *session) runToEnd(ctx context.Context) error {
	all, group := errgroup.WithContext(ctx)
	stop := context.AfterFunc(group, func() { s.socket.Close() }) //nolint:errcheck // what waits for it fails
	defer stop()
	all.Go(func() error { return s.readReplies() })
	all.Go(func() error { return s.outbox.sendFrames(group, s.writer) })
	all.Go(func() error { return keepAlive(group, s.socket, s.outbox, s.limits.Keepalive, func() {}) })
	err := all.Wait()
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	s.server.forgetSession(s)
	s.endStreams(brokenError(err))
	return err
}

func (s *session) endStreams(cause error) {
	s.cause = cause
	close(s.ended)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, st := range s.streams {
		st.endWith(cause)
	}
}

// readReplies handles what the launcher sends. It never waits for anything but the launcher.
func (s *session) readReplies() error {
	if err := s.readOffer(); err != nil {
		return endOfConnection(err)
	}
	s.server.openFor(s)
	for {
		f, err := s.reader.readFrame()
		if err == nil {
			err = s.handleReply(f)
		}
		if err != nil {
			return endOfConnection(err)
		}
	}
}

// readOffer reads the first frame.
func (s *session) readOffer() error {
	f, err := s.reader.readFrame()
	switch {
	case err != nil:
		return err
	case f.kind != frameOffer || f.count == 0:
		return protocolError("%s frame with %d requests instead of an offer", frameShapes[f.kind].name, f.count)
	}
	tail := make([]byte, f.tail)
	if err := s.reader.readTail(tail); err != nil {
		return err
	}
	s.slots = make(chan struct{}, min(uint32(s.limits.Requests), f.count))
	s.infos, err = parseVolumes(tail)
	return err
}

// handleReply handles a frame after the offer, with its tail.
func (s *session) handleReply(f frame) error {
	if f.kind == framePing {
		return nil
	}
	if f.kind == frameOffer {
		return protocolError("a second offer")
	}
	s.mu.Lock()
	st := s.streams[f.stream]
	if f.kind == framePage || f.kind == frameEnd {
		delete(s.streams, f.stream)
	}
	s.mu.Unlock()
	if st == nil {
		return protocolError("%s frame for request %d, which is not in flight", frameShapes[f.kind].name, f.stream)
	}
	switch f.kind {
	case frameEnd:
		return s.handleEnd(st, f)
	case framePage:
		return s.handlePage(st, f)
	default:
		return s.handlePiece(st, f)
	}
}

func (s *session) handleEnd(st *stream, f frame) error {
	defer s.releaseSlot()
	message := make([]byte, f.tail)
	if err := s.reader.readTail(message); err != nil {
		st.endWith(brokenError(endOfConnection(err)))
		return err
	}
	err := endError(f.class, string(message))
	if err == nil {
		if err := st.checkComplete(); err != nil {
			st.endWith(brokenError(err))
			return err
		}
	}
	st.endWith(err)
	return nil
}

func (s *session) handlePage(st *stream, f frame) error {
	defer s.releaseSlot()
	b := s.server.buffers.getBuffer(int(f.tail))
	err := s.reader.readTail(b.data)
	if err == nil && (st.asked.kind != frameRegions || f.tail > st.asked.count*regionBytes) {
		err = protocolError("page of %d bytes for a %s request", f.tail, frameShapes[st.asked.kind].name)
	}
	if err == nil {
		_, err = parsePage(b.data, st.asked.extent, s.infos[st.asked.volume].Incremental, func(export.Region) bool { return false })
	}
	if err != nil {
		s.server.buffers.putBuffer(b)
		st.endWith(brokenError(endOfConnection(err)))
		return err
	}
	st.addArrival(arrival{data: b})
	st.endWith(nil)
	return nil
}

// handlePiece takes content. Nobody may wait for it any more: then it is dropped.
func (s *session) handlePiece(st *stream, f frame) error {
	wanted, err := st.expectPiece(f)
	if err != nil {
		return err
	}
	if f.kind == frameZero {
		st.addArrival(arrival{extent: f.extent})
		return nil
	}
	if !wanted {
		if s.scratch == nil {
			s.scratch = make([]byte, maxPieceBytes)
		}
		return s.reader.readTail(s.scratch[:f.tail])
	}
	b := s.server.buffers.getBuffer(int(f.tail))
	if err := s.reader.readTail(b.data); err != nil {
		s.server.buffers.putBuffer(b)
		return err
	}
	st.addArrival(arrival{extent: f.extent, checksum: f.checksum, data: b})
	return nil
}

func (s *session) releaseSlot() { <-s.slots }

// openStream sends a request, as soon as there is a place for it. The caller calls abandon when it is done.
func (s *session) openStream(ctx context.Context, asked frame) (*stream, error) {
	places := s.server.placesFor(s.limits)
	if err := s.takePlace(ctx, places); err != nil {
		return nil, err
	}
	if err := s.takePlace(ctx, s.slots); err != nil {
		<-places
		return nil, err
	}
	st := &stream{session: s, asked: asked, at: asked.extent.Offset, wake: make(chan struct{}, 1)}
	s.mu.Lock()
	for s.number++; s.number == 0 || s.streams[s.number] != nil; {
		s.number++
	}
	st.asked.stream = s.number
	if asked.kind == frameRead {
		st.asked.count = minCreditBytes
		st.window, st.credit = minCreditBytes, minCreditBytes
	}
	s.streams[s.number] = st
	s.mu.Unlock()
	select {
	case <-s.ended: // perhaps before it was in the map
		<-places
		return nil, s.cause
	default:
	}
	s.outbox.addFrame(st.asked)
	return st, nil
}

func (s *session) takePlace(ctx context.Context, places chan struct{}) error {
	select {
	case places <- struct{}{}:
		return nil
	case <-s.ended:
		return s.cause
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
