package repository

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/internal/repository/storage"
)

// maxFlushInterval is the longest interval between two checks of whether the session manifest is due.
const maxFlushInterval = 10 * time.Minute

// flushPeriodically regularly stores what was written so far, so that a later backup finds it if this one dies, and no garbage
// collection takes it. The returned function stops this. What has failed is tried again at the next tick; what can no longer
// succeed ends the session.
func (s *session) flushPeriodically() (stop func() error) {
	done, ended := make(chan struct{}), make(chan error, 1)
	ticks, end := s.q.ticks, func() {}
	if ticks == nil {
		ticker := time.NewTicker(min(s.q.FlushEvery, maxFlushInterval))
		ticks, end = ticker.C, ticker.Stop
	}
	go func() {
		defer end()
		for {
			select {
			case <-done:
				ended <- nil
				return
			case <-ticks:
			}
			if err := s.flushIfDue(); errors.Is(err, errclass.Corrupt) || errors.Is(err, errclass.NotFound) || errors.Is(err, storage.ErrReplaced) {
				err = fmt.Errorf("flush: %w", err)
				s.cancel(err)
				ended <- err
				return
			}
		}
	}()
	return func() error {
		close(done)
		return <-ended
	}
}

// flushIfDue stores an index of what was written so far, and the session manifest if that is due.
func (s *session) flushIfDue() error {
	engine.Reached("flush due")
	if err := s.r.conn.Failure(); err != nil {
		if replaced := s.r.conn.CheckNotReplaced(s.ctx); errors.Is(replaced, storage.ErrReplaced) {
			return replaced // kopia reads the format now and then, too.
		}
		return fmt.Errorf("%w: %w", errclass.Corrupt, err)
	}
	if s.longAgo(s.stored, sessionRenewal-1) {
		if err := s.storeManifest(s.ctx, engine.SessionRunning); err != nil {
			return err
		}
	} else if err := s.r.conn.CheckNotReplaced(s.ctx); err != nil {
		return err
	} else if err := s.w.Flush(s.ctx); err != nil {
		return err
	}
	engine.Reached("flush stored")
	return nil
}

// withCause adds to err the reason why the session was ended, if there is one.
func (s *session) withCause(err error) error {
	if cause := context.Cause(s.ctx); err != nil && cause != nil && !errors.Is(err, cause) {
		return errors.Join(cause, err)
	}
	return err
}
