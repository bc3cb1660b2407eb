package tunnel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/extent"
)

// serving is a launcher's side of one connection.
type serving struct {
	*launcher
	writer *frameWriter
	reader *frameReader
	outbox *outbox
	// useful says that the far end has asked for something, or that the connection has lasted a keepalive.
	useful atomic.Bool
	// ready has the requests that a worker can go on with, in turn. There is room for all of them.
	ready chan *request

	mu       sync.Mutex
	requests map[uint32]*request
}

func newServing(l *launcher, c io.ReadWriter, s *socket) *serving {
	return &serving{
		launcher: l, writer: newFrameWriter(c, s), reader: &frameReader{from: c}, outbox: newOutbox(),
		ready: make(chan *request, l.cfg.Requests), requests: map[uint32]*request{},
	}
}

// request is one that the far end has made. While it waits for credit it is nothing but this.
type request struct {
	asked frame
	// rest is what was not sent yet, plan is how much of it is looked at for the next slice, and volume is nil until a worker
	// has opened it. They belong to the worker.
	rest   extent.Extent
	plan   int64
	volume export.Volume

	mu     sync.Mutex
	credit int64
	// scheduled says that the request is ready, or that a worker has it.
	scheduled bool
	cancelled bool
	// interrupt ends what a worker does for it.
	interrupt context.CancelFunc
}

func (s *serving) sendOffer() error {
	return s.writer.writeFrame(frame{kind: frameOffer, count: uint32(s.cfg.Requests)}, encodeVolumes(s.infos), false)
}

// readRequests handles what the far end sends. It never waits for anything but the far end.
func (s *serving) readRequests() error {
	for {
		f, err := s.reader.readFrame()
		if err != nil {
			return endOfConnection(err)
		}
		switch f.kind {
		case frameRead, frameRegions:
			err = s.addRequest(f)
		case frameCredit:
			err = s.addCredit(f)
		case frameCancel:
			s.cancelRequest(f.stream)
		default: // a ping
		}
		if err != nil {
			return err
		}
	}
}

// endOfConnection says what the end of a connection means that nobody has announced.
func endOfConnection(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errclass.Errorf(errclass.Transient, "the peer has closed the connection: %w", io.ErrUnexpectedEOF)
	}
	if errors.Is(err, ErrProtocol) {
		return err
	}
	return errclass.Errorf(errclass.Transient, "read: %w", err)
}

func (s *serving) addRequest(f frame) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case len(s.requests) >= s.cfg.Requests:
		return protocolError("more than %d requests", s.cfg.Requests)
	case s.requests[f.stream] != nil:
		return protocolError("request %d is in flight already", f.stream)
	case f.kind == frameRegions && (f.count == 0 || f.count > maxPageRegions):
		return protocolError("page of %d regions", f.count)
	case f.kind == frameRead && (f.count < minCreditBytes || f.count > maxCreditBytes):
		return protocolError("credit of %d bytes", f.count)
	}
	s.useful.Store(true)
	r := &request{asked: f, rest: f.extent, scheduled: true}
	if f.kind == frameRead {
		r.credit = int64(f.count)
	}
	s.requests[f.stream] = r
	s.ready <- r
	return nil
}

// addCredit wakes a request that waited for credit. One that has ended in the meantime needs none.
func (s *serving) addCredit(f frame) error {
	s.mu.Lock()
	r := s.requests[f.stream]
	s.mu.Unlock()
	if r == nil {
		return nil
	}
	if r.asked.kind != frameRead {
		return protocolError("credit for request %d, which takes none", f.stream)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.credit += int64(f.count); r.credit > maxCreditBytes {
		return protocolError("credit of %d bytes", r.credit)
	}
	s.scheduleLocked(r)
	return nil
}

// cancelRequest has a worker end the request, now or as soon as there is one.
func (s *serving) cancelRequest(stream uint32) {
	s.mu.Lock()
	r := s.requests[stream]
	s.mu.Unlock()
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cancelled = true
	if r.interrupt != nil {
		r.interrupt()
	}
	s.scheduleLocked(r)
}

// scheduleLocked makes a request ready if a worker can do something for it. The caller holds r.mu.
func (s *serving) scheduleLocked(r *request) {
	if r.scheduled || !r.cancelled && r.credit < bufferBytes(maxPieceBytes) {
		return
	}
	r.scheduled = true
	s.ready <- r
}

// workOnRequests is a worker.
func (s *serving) workOnRequests(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case r := <-s.ready:
			if err := s.workOn(ctx, r); err != nil {
				return err
			}
		}
	}
}

// workOn goes on with a request, for a slice of it. An error is the connection's.
func (s *serving) workOn(ctx context.Context, r *request) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r.mu.Lock()
	r.interrupt = cancel
	if r.cancelled {
		cancel()
	}
	r.mu.Unlock()
	var broken writeError
	done, err := s.advanceRequest(ctx, r)
	if errors.As(err, &broken) {
		return broken.err
	}
	if done || err != nil {
		return s.endRequest(r, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.interrupt, r.scheduled = nil, false
	s.scheduleLocked(r)
	return nil
}

// writeError is an error of the connection, in contrast to one of a volume.
type writeError struct{ err error }

func (e writeError) Error() string { return e.err.Error() }

// advanceRequest does a piece of the work, and reports whether it was the last. A volume that panics fails the request.
func (s *serving) advanceRequest(ctx context.Context, r *request) (done bool, err error) {
	defer func() {
		if p := recover(); p != nil {
			s.cfg.Log.Error("a volume panicked", "volume", r.asked.volume, "panic", fmt.Sprint(p))
			err = errors.New("the volume panicked")
		}
	}()
	if err := ctx.Err(); err != nil {
		return false, err
	}
	if r.volume == nil {
		if r.volume, err = s.openVolume(ctx, r.asked); err != nil {
			return false, err
		}
	}
	if r.asked.kind == frameRegions {
		return false, s.sendPage(ctx, r)
	}
	return s.sendSlice(ctx, r)
}

// openVolume opens the volume that a request is about, and checks the request against it.
func (s *serving) openVolume(ctx context.Context, asked frame) (export.Volume, error) {
	if int(asked.volume) >= len(s.infos) {
		return nil, errclass.Errorf(errclass.NotFound, "volume %d was not offered", asked.volume)
	}
	offered := s.infos[asked.volume]
	if asked.extent.End() > offered.Bytes {
		return nil, errclass.Errorf(errclass.Invalid, "volume %s has %d bytes: %v is not in it", offered.Name, offered.Bytes, asked.extent)
	}
	volume, err := s.volumes.Open(ctx, offered.Name)
	if err != nil {
		return nil, err
	}
	if volume.Info() != offered {
		return nil, errclass.Errorf(errclass.Expired, "volume %s is not the one that was offered", offered.Name)
	}
	return volume, nil
}

// sendPage answers a request for regions.
func (s *serving) sendPage(ctx context.Context, r *request) error {
	page := make([]byte, 0, min(r.asked.count, maxPageRegions)*regionBytes)
	at := r.rest.Offset
	var failure error
	err := r.volume.Regions(ctx, r.rest, func(region export.Region) bool {
		if region.Offset != at || region.Empty() || !region.Valid() || !r.rest.Contains(region.Extent) {
			failure = fmt.Errorf("volume reports %v after %d", region.Extent, at)
			return false
		}
		page, at = appendRegion(page, region), region.End()
		return len(page) < cap(page)
	})
	if err = errors.Join(err, failure); err == nil && len(page) == 0 {
		err = fmt.Errorf("volume reports no region of %v", r.rest)
	}
	if err != nil {
		return err
	}
	s.forgetRequest(r)
	if err := s.writer.writeFrame(frame{kind: framePage, stream: r.asked.stream}, page, false); err != nil {
		return writeError{err}
	}
	return errAnswered
}

// errAnswered: the request has ended, and its end has been sent.
var errAnswered = errors.New("answered")

// forgetRequest removes a request just before its end is sent: its stream may be used again as soon as the far end
// knows.
func (s *serving) forgetRequest(r *request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.requests, r.asked.stream)
}

// endRequest sends the end of a request.
func (s *serving) endRequest(r *request, err error) error {
	if errors.Is(err, errAnswered) {
		return nil
	}
	s.forgetRequest(r)
	class, message := endOf(err)
	return s.writer.writeFrame(frame{kind: frameEnd, stream: r.asked.stream, class: class}, []byte(message), false)
}
