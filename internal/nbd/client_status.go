package nbd

import (
	"context"
	"fmt"
	"slices"

	"github.com/varvebackup/varve/internal/extent"
)

const (
	// maxStatusBytes bounds the payload of one block status chunk.
	maxStatusBytes = 64 << 20
	// maxDescriptors is how many runs of a chunk are kept. The client asks again for the rest.
	maxDescriptors = 64 << 10
)

// statusReply is the result of a block status request, indexed like the client's contexts. It keeps its memory from one
// request to the next.
type statusReply struct {
	runs [][]descriptor
	seen []bool
}

func (r *statusReply) resetFor(contexts int) {
	if r.runs == nil {
		r.runs, r.seen = make([][]descriptor, contexts), make([]bool, contexts)
	}
	for i := range r.runs {
		r.runs[i], r.seen[i] = r.runs[i][:0], false
	}
}

// statusChunk reads a block status chunk.
func (k *clientConn) statusChunk(s *slot, r reply) error {
	head, count, err := statusHead(r.kind, r.length)
	if err != nil {
		return err
	}
	if r.length > maxStatusBytes {
		return protocolError("block status payload of %d bytes", r.length)
	}
	if err := k.readFull(k.scratch[:head]); err != nil {
		return err
	}
	id, err := parseStatusHead(r.kind, k.scratch[:head], count)
	if err != nil {
		return err
	}
	index, ok := k.index[id]
	if !ok {
		return protocolError("block status of unknown context %d", id)
	}
	if err := s.statusBegins(index); err != nil {
		return err
	}
	each := descriptorSize(r.kind)
	for count > 0 {
		n := min(count, uint64(scratchBytes/each))
		b := k.scratch[:n*uint64(each)]
		if err := k.readFull(b); err != nil {
			return err
		}
		if err := s.addStatus(r.kind, index, b); err != nil {
			return err
		}
		count -= n
	}
	return nil
}

func (s *slot) statusBegins(index int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.call == nil:
	case s.status.seen[index]:
		return protocolError("block status of one context twice in a reply")
	default:
		s.status.seen[index] = true
	}
	return nil
}

// addStatus keeps the descriptors in b, unless the caller has given up.
func (s *slot) addStatus(kind uint16, index int, b []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for each := descriptorSize(kind); len(b) > 0; b = b[each:] {
		d, err := parseDescriptor(kind, b[:each])
		if err != nil {
			return err
		}
		if s.call != nil && len(s.status.runs[index]) < maxDescriptors {
			s.status.runs[index] = append(s.status.runs[index], d)
		}
	}
	return nil
}

// statusComplete checks that a successful reply has every context.
func (s *slot) statusComplete() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.call != nil && slices.Contains(s.status.seen, false) {
		return protocolError("block status reply without one of the contexts")
	}
	return nil
}

// BlockStatus reports the status of all of e in every negotiated context (Info says which) to fn, in one pass. The
// extents of one context come in order and without gaps, and adjacent ones have different flags. The contexts are
// interleaved. For base:allocation, flags are StateHole and StateZero. fn's error ends the pass and is returned. The
// other errors are as in ReadAt, and ErrNoContext.
func (c *Client) BlockStatus(ctx context.Context, e extent.Extent, fn func(name string, e extent.Extent, flags uint64) error) error {
	if err := c.checkRequest(cmdBlockStatus, e, 0); err != nil {
		return err
	}
	if len(c.contexts) == 0 {
		return ErrNoContext
	}
	wide := e.Widen(int64(c.info.Block.Minimum), c.info.Bytes)
	scans := make([]scan, len(c.contexts))
	for i, name := range c.contexts {
		scans[i] = scan{name: name, within: e, at: wide.Offset, fn: fn}
	}
	var r statusReply
	for at := wide.Offset; at < wide.End(); {
		part := extent.Extent{Offset: at, Length: min(c.maxPieceBytes(false), wide.End()-at)}
		if err := c.queryStatus(ctx, part, &r); err != nil {
			return err
		}
		next := part.End()
		for i := range scans {
			if err := scans[i].takeStatus(part, r.runs[i]); err != nil {
				return err
			}
			next = min(next, scans[i].at)
		}
		if next <= at {
			return protocolError("block status does not advance from %d", at)
		}
		at = next
	}
	for i := range scans {
		if err := scans[i].emitRun(); err != nil {
			return err
		}
	}
	return nil
}

func (c *Client) queryStatus(ctx context.Context, e extent.Extent, r *statusReply) error {
	r.resetFor(len(c.contexts))
	a := c.beginCall()
	if err := c.submitRequest(ctx, a, request{cmd: cmdBlockStatus, offset: uint64(e.Offset), length: uint64(e.Length)}, nil, r); err != nil {
		a.recordError(err)
	}
	return c.awaitCall(ctx, a)
}

// scan is the progress of one context through a disk.
type scan struct {
	name   string
	within extent.Extent
	// at is the offset up to which the status is known.
	at int64
	// pending is the last run, which may continue.
	pending extent.Extent
	flags   uint64
	fn      func(string, extent.Extent, uint64) error
}

// takeStatus adds what a reply about part says. The beginning of part may be known already, if another context's status was
// shorter. takeStatus ignores what the reply says beyond part.
func (s *scan) takeStatus(part extent.Extent, runs []descriptor) error {
	at := part.Offset
	for _, d := range runs {
		end := part.End()
		if d.length < uint64(end-at) {
			end = at + int64(d.length)
		}
		if end > s.at {
			if err := s.addRun(extent.Extent{Offset: s.at, Length: end - s.at}, d.flags); err != nil {
				return err
			}
			s.at = end
		}
		if at = end; at == part.End() {
			break
		}
	}
	return nil
}

func (s *scan) addRun(e extent.Extent, flags uint64) error {
	if e = e.Intersect(s.within); e.Empty() {
		return nil
	}
	if !s.pending.Empty() && s.flags == flags {
		s.pending.Length += e.Length
		return nil
	}
	if err := s.emitRun(); err != nil {
		return err
	}
	s.pending, s.flags = e, flags
	return nil
}

func (s *scan) emitRun() error {
	if s.pending.Empty() {
		return nil
	}
	return s.fn(s.name, s.pending, s.flags)
}

// Data returns the part of e that must be read to be known, because base:allocation does not say that it reads as
// zeroes. A hole whose content is undefined counts as data.
func (c *Client) Data(ctx context.Context, e extent.Extent) (extent.Set, error) {
	return c.collectExtents(ctx, e, ContextAllocation, func(flags uint64) bool { return flags&StateZero == 0 })
}

// Dirty returns the part of e that QEMU's bitmap of this name marks as changed. The context is ContextDirtyBitmap
// followed by the bitmap's name.
func (c *Client) Dirty(ctx context.Context, e extent.Extent, bitmap string) (extent.Set, error) {
	return c.collectExtents(ctx, e, ContextDirtyBitmap+bitmap, func(flags uint64) bool { return flags&StateDirty != 0 })
}

func (c *Client) collectExtents(ctx context.Context, e extent.Extent, name string, in func(flags uint64) bool) (extent.Set, error) {
	var set extent.Set
	if !slices.Contains(c.contexts, name) {
		return set, fmt.Errorf("%w: %s", ErrNoContext, name)
	}
	err := c.BlockStatus(ctx, e, func(context string, e extent.Extent, flags uint64) error {
		if context == name && in(flags) {
			set.Append(e)
		}
		return nil
	})
	if err != nil {
		return extent.Set{}, err
	}
	return set, nil
}
