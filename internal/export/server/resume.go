package server

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/extent"
)

// resumePause is the pause between two attempts to go on with a volume.
const resumePause = 250 * time.Millisecond

// watchedWriter knows whether something was written. Other goroutines may ask.
type watchedWriter struct {
	*response
	begun atomic.Bool
}

// Write implements io.Writer.
func (w *watchedWriter) Write(p []byte) (int, error) {
	w.begun.Store(true)
	return w.response.Write(p)
}

// readOn is v.Read for an answer that has begun: if the volume cannot be reached for a while, as when the tunnel breaks, it
// goes on where it stopped. A volume is one point in time, so that the bytes fit. begun says whether the client has
// something of the answer already; otherwise a status is better than a wait. The error is that of the last attempt.
func (s *Server) readOn(ctx context.Context, v export.Volume, e extent.Extent, scope export.Scope, begun func() bool, sink func(export.Chunk) error) error {
	var refused bool // by sink, and not by the volume
	var broken time.Time
	for {
		err := v.Read(ctx, e, scope, func(c export.Chunk) error {
			err := sink(c)
			if refused = err != nil; !refused {
				e, broken = extent.Extent{Offset: c.End(), Length: e.End() - c.End()}, time.Time{}
			}
			return err
		})
		if refused || !errors.Is(err, errclass.Transient) || errors.Is(err, errclass.Corrupt) || ctx.Err() != nil || !begun() {
			return err
		}
		if now := s.Clock.Now(); broken.IsZero() {
			broken = now
		} else if now.Sub(broken) >= s.Limits.Resume {
			return err
		}
		timer := s.Clock.NewTimer(resumePause)
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			return err
		}
	}
}
