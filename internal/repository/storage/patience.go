package storage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kopia/kopia/repo/blob"
	"k8s.io/utils/clock"

	"github.com/varvebackup/varve/internal/errclass"
)

// ErrGivenUp is of class Transient: the storage did not answer for as long as a Patience waits. Whoever waits as well
// waits no more.
var ErrGivenUp = errclass.New(errclass.Transient, "the storage did not answer")

// Patience waits for a storage that does not answer, and sends requests again until it does. All requests of a
// connection share one, and so does what opens the connection. It is safe for concurrent use once its fields are set.
// A nil Patience does not wait.
type Patience struct {
	// Limit is how long a request may go without an answer. Then its error is ErrGivenUp.
	Limit time.Duration
	// FirstPause is the pause before a request is sent again; 0: a second. Pauses double up to LongestPause; 0: a
	// minute.
	FirstPause, LongestPause time.Duration
	// Notify is called with each request that gets no answer, and with nil once none waits any more. It is called
	// from one goroutine at a time, and must not make requests. It may be nil.
	Notify func(*Outage)

	mu      sync.Mutex
	waiting int // requests
	outage  *Outage
}

// Outage is a time in which a storage does not answer.
type Outage struct {
	// Since is when the first request was sent that has had no answer.
	Since time.Time
	// Reason says in a few words why the latest request had none.
	Reason string
}

// Do calls request until it ends in another way than with an error for which IsUnavailable is true, ctx ends, or the
// limit is reached.
func (p *Patience) Do(ctx context.Context, request func() error) error {
	if p == nil {
		return request()
	}
	began, waiting := clock.RealClock{}.Now(), false
	defer func() {
		if waiting {
			p.endWait()
		}
	}()
	longest := cmp.Or(p.LongestPause, time.Minute)
	for pause := cmp.Or(p.FirstPause, time.Second); ; pause = min(2*pause, longest) {
		err := request()
		if ctx.Err() != nil || !IsUnavailable(err) || errors.Is(err, ErrGivenUp) {
			return err
		}
		p.noteOutage(began, err, !waiting)
		waiting = true
		left := p.Limit - clock.RealClock{}.Since(began)
		if left <= 0 {
			return errclass.Errorf(ErrGivenUp, "the storage did not answer for %s: %w", p.Limit, err)
		}
		timer := time.NewTimer(min(pause, longest, left))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

// noteOutage takes in that a request had no answer. first says that it is the first time for this request.
func (p *Patience) noteOutage(began time.Time, err error, first bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if first {
		p.waiting++
	}
	if p.outage == nil {
		p.outage = &Outage{Since: began}
	}
	p.outage = &Outage{Since: p.outage.Since, Reason: briefReason(err)}
	if p.Notify != nil {
		p.Notify(p.outage)
	}
}

// endWait takes in that a request which waited does not wait any more.
func (p *Patience) endWait() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waiting--; p.waiting > 0 {
		return
	}
	p.outage = nil
	if p.Notify != nil {
		p.Notify(nil)
	}
}

// patient is a storage whose requests wait while it does not answer.
type patient struct {
	blob.Storage

	patience *Patience
}

// sentAgainKey marks the contexts of requests that a patient sends again.
type sentAgainKey struct{}

// isSentAgain says that whoever sends a request sends it again if it gets no answer, and tells of that.
func isSentAgain(ctx context.Context) bool { return ctx.Value(sentAgainKey{}) != nil }

func sentAgain(ctx context.Context) context.Context {
	return context.WithValue(ctx, sentAgainKey{}, true)
}

// NewPatient returns a storage whose requests wait as p says. The storage must heed its context.
func NewPatient(st blob.Storage, p *Patience) blob.Storage {
	if p == nil {
		return st
	}
	return &patient{st, p}
}

func (s *patient) GetBlob(ctx context.Context, id blob.ID, offset, length int64, out blob.OutputBuffer) error {
	return s.patience.Do(ctx, func() error {
		out.Reset()
		return s.Storage.GetBlob(sentAgain(ctx), id, offset, length, out)
	})
}

func (s *patient) GetMetadata(ctx context.Context, id blob.ID) (m blob.Metadata, err error) {
	err = s.patience.Do(ctx, func() error {
		m, err = s.Storage.GetMetadata(sentAgain(ctx), id)
		return err
	})
	return m, err
}

func (s *patient) PutBlob(ctx context.Context, id blob.ID, data blob.Bytes, o blob.PutOptions) error {
	return s.patience.Do(ctx, func() error { return s.Storage.PutBlob(sentAgain(ctx), id, data, o) })
}

func (s *patient) DeleteBlob(ctx context.Context, id blob.ID) error {
	return s.patience.Do(ctx, func() error { return s.Storage.DeleteBlob(sentAgain(ctx), id) })
}

func (s *patient) ExtendBlobRetention(ctx context.Context, id blob.ID, o blob.ExtendOptions) error {
	return s.patience.Do(ctx, func() error { return s.Storage.ExtendBlobRetention(sentAgain(ctx), id, o) })
}

// ListBlobs waits only before call is called, because call must not be told of a blob twice. A list that breaks off
// is an error.
func (s *patient) ListBlobs(ctx context.Context, prefix blob.ID, call func(blob.Metadata) error) error {
	var told error // the error of a list that has told of something
	err := s.patience.Do(ctx, func() error {
		some := false
		err := s.Storage.ListBlobs(sentAgain(ctx), prefix, func(m blob.Metadata) error {
			some = true
			return call(m)
		})
		if some {
			told = err
			return nil
		}
		return err
	})
	if err == nil {
		err = told
	}
	return err
}
