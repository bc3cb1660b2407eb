package repository

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// checkpointLookMax is the longest interval between two checks of whether the session manifest is due.
const checkpointLookMax = 10 * time.Minute

// checkpoint regularly stores what was written so far, so that a later backup finds it if this one dies, and no garbage
// collection takes it. The returned function stops this. What has failed is tried again at the next tick; what can no longer
// succeed ends the session.
func (s *session) checkpoint() (stop func() error) {
	done, ended := make(chan struct{}), make(chan error, 1)
	ticks, end := s.q.ticks, func() {}
	if ticks == nil {
		ticker := time.NewTicker(min(s.q.CheckpointEvery, checkpointLookMax))
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
			if err := s.storeCheckpoint(); errors.Is(err, ErrCorrupt) || errors.Is(err, ErrNotFound) || errors.Is(err, errReplaced) {
				err = fmt.Errorf("checkpoint: %w", err)
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

// storeCheckpoint stores an index of what was written so far, and the session manifest if that is due.
func (s *session) storeCheckpoint() error {
	reached("checkpoint due")
	if err := s.r.failed(); err != nil {
		if replaced := s.r.notReplaced(s.ctx); errors.Is(replaced, errReplaced) {
			return replaced // kopia reads the format now and then, too.
		}
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if s.longAgo(s.stored, sessionRenewal-1) {
		if err := s.store(s.ctx, sessionRunning); err != nil {
			return err
		}
	} else if err := s.r.notReplaced(s.ctx); err != nil {
		return err
	} else if err := s.w.Flush(s.ctx); err != nil {
		return err
	}
	reached("checkpoint stored")
	return nil
}

// cause adds to err the reason why the session was ended, if there is one.
func (s *session) cause(err error) error {
	if cause := context.Cause(s.ctx); err != nil && cause != nil && !errors.Is(err, cause) {
		return errors.Join(cause, err)
	}
	return err
}
