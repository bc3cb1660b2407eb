package upload

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/utils/clock"

	"github.com/varvebackup/varve/internal/errclass"
)

const (
	// retryPause is the pause before the next connection after one that was not made.
	retryPause = time.Second
	// busyPatience is how long a command waits for another one to end. Within this time, the pod notices that the
	// connections of a command are broken that was killed or has lost its network.
	busyPatience = 3 * time.Minute
)

// Command serves a file to a source pod, on connections that it makes.
type Command struct {
	File *File
	// Dial connects to Port of the pod. It is called again after errors that are Transient.
	Dial  func(context.Context) (net.Conn, error)
	Clock clock.WithTicker
	// Notify is told why there is no connection, and nil when there is one. Several goroutines call it.
	Notify func(error)

	session Session
	mu      sync.Mutex
	busy    time.Time // when another command was first seen there; zero: none is
}

// Run serves until ctx ends, which is no error. It fails if the file cannot be read or was changed, if the pod cannot be
// reached for a reason that stays, or if another command does not leave it.
func (c *Command) Run(ctx context.Context) error {
	c.session = NewSession()
	group, within := errgroup.WithContext(ctx)
	group.Go(func() error {
		select {
		case <-c.File.failed:
			return c.File.Err()
		case <-within.Done():
			return nil
		}
	})
	for range Connections {
		group.Go(func() error { return c.serveAgain(within) })
	}
	err := group.Wait()
	if ctx.Err() != nil {
		return nil //nolint:nilerr // The end of ctx is no error.
	}
	return err
}

func (c *Command) serveAgain(ctx context.Context) error {
	for ctx.Err() == nil {
		err := c.serveOnce(ctx)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // see Run
		case errors.Is(err, ErrBusy):
			err = c.checkBusy(err)
		case errors.Is(err, errclass.Transient):
			err = nil
		}
		if err == nil {
			err = c.pauseBeforeRetry(ctx)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// serveOnce makes a connection, and serves on it until it breaks.
func (c *Command) serveOnce(ctx context.Context) error {
	conn, err := c.Dial(ctx)
	if err == nil {
		err = c.session.Greet(ctx, conn)
	}
	if ctx.Err() == nil {
		c.Notify(err)
	}
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.busy = time.Time{}
	c.mu.Unlock()
	Serve(ctx, conn, c.File)
	return nil
}

// checkBusy returns an error if another command has been there for too long.
func (c *Command) checkBusy(busy error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy.IsZero() {
		c.busy = c.Clock.Now()
	}
	if c.Clock.Since(c.busy) < busyPatience {
		return nil
	}
	return fmt.Errorf("%w: wait until it has ended, or end it, and run this one again", busy)
}

func (c *Command) pauseBeforeRetry(ctx context.Context) error {
	timer := c.Clock.NewTimer(retryPause)
	defer timer.Stop()
	select {
	case <-timer.C():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
