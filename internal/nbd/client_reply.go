package nbd

import (
	"encoding/binary"
	"math"

	"github.com/varvebackup/varve/internal/extent"
)

// readReply handles one simple reply or one chunk. An error ends the connection.
func (k *clientConn) readReply() error {
	magic, err := k.br.Peek(4)
	if err != nil {
		return err
	}
	size, err := k.headers.replySize(binary.BigEndian.Uint32(magic))
	if err != nil {
		return err
	}
	head := k.scratch[:size]
	if err := k.readFull(head); err != nil {
		return err
	}
	r := parseReply(head)
	s, req, err := k.findRequest(r)
	if err != nil {
		return err
	}
	if r.simple {
		return k.handleSimpleReply(s, req, r)
	}
	if err := k.handleChunk(s, req, r); err != nil || !r.isFinal() {
		return err
	}
	return k.concludeRequest(s, req)
}

// findRequest returns the request that r answers.
func (k *clientConn) findRequest(r reply) (*slot, request, error) {
	if n := r.handle & slotMask; n < uint64(len(k.c.slots)) {
		s := k.c.slots[n]
		s.mu.Lock()
		defer s.mu.Unlock()
		answered := s.state == slotWriting && s.early
		if s.handle == r.handle && s.conn == k && (s.state == slotSent || s.state == slotWriting) && !answered {
			return s, s.req, nil
		}
	}
	return nil, request{}, protocolError("reply to no request: handle %#x", r.handle)
}

// handleSimpleReply handles a reply that is the whole answer to a request.
func (k *clientConn) handleSimpleReply(s *slot, req request, r reply) error {
	switch {
	case r.errno != 0:
		k.c.completeSlot(s, serverError(req, r.errno))
		return nil
	case req.cmd == cmdBlockStatus, req.cmd == cmdRead && k.headers != simpleHeaders:
		return protocolError("simple reply to %v", req.cmd)
	case req.cmd == cmdRead:
		if err := k.fillSlot(s, 0, req.length); err != nil {
			return err
		}
	}
	k.c.completeSlot(s, nil)
	return nil
}

func serverError(req request, errno uint32) *Error {
	return &Error{Op: req.cmd.String(), Extent: req.requestedExtent(), Errno: errnoFromWire(errno), Offset: -1}
}

// requestedExtent returns what the request is about; the client made it valid.
func (r request) requestedExtent() extent.Extent {
	return extent.Extent{Offset: int64(r.offset), Length: int64(r.length)}
}

// containsRange reports whether length bytes at offset are part of the request.
func (r request) containsRange(offset, length uint64) bool {
	return offset >= r.offset && length <= r.length && offset-r.offset <= r.length-length
}

// handleChunk handles one chunk of a structured reply: section "Structured reply types".
func (k *clientConn) handleChunk(s *slot, req request, r reply) error {
	if k.headers == extendedHeaders && r.offset != req.offset {
		return protocolError("reply for offset %d to a request at %d", r.offset, req.offset)
	}
	switch {
	case r.kind&replyErr != 0:
		return k.errorChunk(s, req, r)
	case r.kind == replyNone:
		if r.length != 0 || !r.isFinal() {
			return protocolError("NBD_REPLY_TYPE_NONE with %d bytes, or not the last chunk", r.length)
		}
		return nil
	case r.kind == replyOffsetData && req.cmd == cmdRead:
		return k.dataChunk(s, req, r)
	case r.kind == replyOffsetHole && req.cmd == cmdRead:
		return k.holeChunk(s, req, r)
	case r.kind == k.headers.statusKind() && req.cmd == cmdBlockStatus:
		return k.statusChunk(s, r)
	}
	return protocolError("chunk of type %d in the reply to %v", r.kind, req.cmd)
}

// statusKind returns the type of a block status chunk.
func (h headers) statusKind() uint16 {
	if h == extendedHeaders {
		return replyBlockStatusExt
	}
	return replyBlockStatus
}

func (k *clientConn) dataChunk(s *slot, req request, r reply) error {
	if r.length <= offsetBytes {
		return protocolError("data chunk of %d bytes", r.length)
	}
	b := k.scratch[:offsetBytes]
	if err := k.readFull(b); err != nil {
		return err
	}
	offset := binary.BigEndian.Uint64(b)
	n := r.length - offsetBytes
	if err := s.coverBytes(req, offset, n); err != nil {
		return err
	}
	return k.fillSlot(s, offset-req.offset, n)
}

func (k *clientConn) holeChunk(s *slot, req request, r reply) error {
	if r.length != holeBytes {
		return protocolError("hole chunk of %d bytes", r.length)
	}
	b := k.scratch[:holeBytes]
	if err := k.readFull(b); err != nil {
		return err
	}
	offset, length := parseHole(b)
	if err := s.coverBytes(req, offset, uint64(length)); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.call != nil {
		clear(s.data[offset-req.offset:][:length])
	}
	return nil
}

// coverBytes notes that the reply has these bytes. It fails if they are not part of the request, or came before.
func (s *slot) coverBytes(req request, offset, length uint64) error {
	if length == 0 || !req.containsRange(offset, length) {
		return protocolError("%d bytes at %d in the reply to a read of %v", length, offset, req.requestedExtent())
	}
	return s.covered.addExtent(extent.Extent{Offset: int64(offset), Length: int64(length)})
}

func (k *clientConn) errorChunk(s *slot, req request, r reply) error {
	if r.length > maxErrorBytes {
		return protocolError("error chunk of %d bytes", r.length)
	}
	b := make([]byte, r.length)
	if err := k.readFull(b); err != nil {
		return err
	}
	e, err := parseErrorChunk(r.kind, b)
	if err != nil {
		return err
	}
	if e.located && !req.containsRange(e.offset, 0) {
		return protocolError("error at %d in the reply to %v of %v", e.offset, req.cmd, req.requestedExtent())
	}
	if s.refusal == nil { // only the first counts
		s.refusal = serverError(req, e.errno)
		s.refusal.Message = printableMessage(e.message)
		if e.located {
			s.refusal.Offset = int64(e.offset)
		}
	}
	return nil
}

// concludeRequest ends a request whose last chunk has arrived.
func (k *clientConn) concludeRequest(s *slot, req request) error {
	var result error
	switch have := s.covered.bytes; {
	case s.refusal != nil:
		result = s.refusal
	case req.cmd == cmdRead && have != int64(req.length):
		return protocolError("%d bytes in the reply to a read of %v", have, req.requestedExtent())
	case req.cmd == cmdBlockStatus:
		if err := s.statusComplete(); err != nil {
			return err
		}
	}
	k.c.completeSlot(s, result)
	return nil
}

// mostEffect returns the longest range that a request without payload can be about.
func (h headers) mostEffect() uint64 {
	if h == extendedHeaders {
		return math.MaxInt64
	}
	return math.MaxUint32
}
