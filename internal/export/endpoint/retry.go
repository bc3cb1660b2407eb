package endpoint

import (
	"context"
	"errors"
	"time"

	"github.com/varvebackup/varve/internal/errclass"
)

// retry calls attempt until it succeeds, fails for good, or brings nothing for as long as the client is patient. attempt
// reports whether it brought anything.
func (c *Client) retry(ctx context.Context, attempt func() (progressed bool, err error)) error {
	since, pause := c.o.Clock.Now(), c.o.FirstPause
	for {
		progressed, err := attempt()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if !isRetried(err) {
			return &Error{err}
		}
		now := c.o.Clock.Now()
		if progressed {
			since, pause = now, c.o.FirstPause
		}
		if now.Sub(since) >= c.o.Patience {
			return &Error{errclass.Errorf(errclass.Transient, "nothing came for %s: %w", c.o.Patience, err)}
		}
		c.o.Retrying(err)
		if err := c.wait(ctx, pause, err); err != nil {
			return err
		}
		pause = min(2*pause, c.o.LongestPause)
	}
}

// wait pauses for half of pause and up to as much again, so that volumes that were cut together do not come back together; or for as
// long as the server asks.
func (c *Client) wait(ctx context.Context, pause time.Duration, reason error) error {
	pause = c.vary(pause)
	var refused *refusedError
	if errors.As(reason, &refused) {
		pause = max(pause, min(refused.after, c.o.LongestPause))
	}
	timer := c.o.Clock.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C():
		return nil
	}
}

// vary returns from half of pause to all of it.
func (c *Client) vary(pause time.Duration) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return pause/2 + time.Duration(c.random.Int64N(int64(pause/2)+1))
}
