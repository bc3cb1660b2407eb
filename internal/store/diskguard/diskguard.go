// Package diskguard keeps a disk that does not answer, such as one of a dead SAN, from holding up those who call it.
//
// A call runs in a goroutine of its own. If one takes longer than it may, the disk is silent: all callers that wait for
// it get an error of class Transient, and so do later ones, at once, until the calls that took too long have returned.
// So no goroutines pile up. The context of a call that was given up is canceled. What the call does may still happen:
// the same call again finds that out, as [disk.Disk] says of errors whose outcome is not known.
package diskguard

import (
	"context"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/varvebackup/varve/internal/errclass"
)

const (
	// Patience is how long a call may take that is usually short.
	Patience = 30 * time.Second
	// deletePatience and createPatience are for calls that write much metadata.
	deletePatience = time.Minute
	createPatience = 5 * time.Minute
	// endless is for calls that read or write data. They end when another one shows that the disk is silent.
	endless = time.Duration(0)
)

// ErrSilent is an error of class Transient: the disk does not answer.
var ErrSilent = errclass.New(errclass.Transient, "silent")

// Guard watches the calls of one disk. It is safe for concurrent use.
type Guard struct {
	clock clock.Clock

	mu sync.Mutex
	// late is how many calls took too long and have not returned.
	late int
	// silence is closed while there are any.
	silence chan struct{}
	// since is when the call began that was given up first, and what is what it was to do.
	since time.Time
	what  string
}

// New returns a guard of a disk.
func New(c clock.Clock) *Guard { return &Guard{clock: c, silence: make(chan struct{})} }

// Check returns an error that is ErrSilent while the disk is silent.
func (g *Guard) Check() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.describeSilence()
}

func (g *Guard) describeSilence() error {
	if g.late == 0 {
		return nil
	}
	return errclass.Errorf(ErrSilent, "the disk has not answered since %s, when it was to %s: look for errors of its "+
		"device in the kernel's log of the node", g.since.UTC().Format(time.RFC3339), g.what)
}

// Call is a call that has begun.
type Call struct {
	guard    *Guard
	what     string
	patience time.Duration
	begun    time.Time
	ended    bool
	givenUp  bool
}

// Start notes that a call begins, which is to do something ("list its objects"). Whoever starts it gives it up when it
// is late.
func (g *Guard) Start(what string) *Call {
	return &Call{guard: g, what: what, patience: Patience, begun: g.clock.Now()}
}

// End notes that the call has returned, and reports whether it was given up before.
func (c *Call) End() (givenUp bool) {
	g := c.guard
	g.mu.Lock()
	defer g.mu.Unlock()
	c.ended = true
	if c.givenUp && c.patience != endless {
		g.late--
		if g.late == 0 {
			g.silence = make(chan struct{})
		}
	}
	return c.givenUp
}

// IsLate says whether the call has taken too long.
func (c *Call) IsLate() bool { return c.guard.clock.Since(c.begun) >= c.patience }

// GiveUp makes the disk silent until the call returns, and returns an error that says so. It returns nil if it has
// returned already.
func (c *Call) GiveUp() error { return c.giveUp(true) }

// giveUp gives up a call that is late, or one that is not, because the disk is silent. If the disk is not silent any
// more, it returns nil, and the call goes on.
func (c *Call) giveUp(late bool) error {
	g := c.guard
	g.mu.Lock()
	defer g.mu.Unlock()
	if c.ended || !late && g.late == 0 {
		return nil
	}
	if !c.givenUp && c.patience != endless {
		if g.late == 0 {
			g.since, g.what = c.begun, c.what
			close(g.silence)
		}
		g.late++
	}
	c.givenUp = true
	return g.describeSilence()
}

// watchSilence returns a channel that is closed as soon as the disk is silent.
func (g *Guard) watchSilence() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.silence
}

// Do has f run, and returns what it returns, unless the disk is silent or f takes longer than Patience. What f returns
// after that goes to discard, which may be nil.
func Do[T any](
	ctx context.Context, g *Guard, what string, discard func(T), f func(context.Context) (T, error),
) (T, error) {
	return runCall(ctx, g.Start(what), discard, f)
}

// doWithin is Do with another patience, for what returns only an error.
func doWithin(
	ctx context.Context, g *Guard, what string, patience time.Duration, f func(context.Context) error,
) error {
	c := g.Start(what)
	c.patience = patience
	_, err := runCall(ctx, c, nil, func(ctx context.Context) (struct{}, error) { return struct{}{}, f(ctx) })
	return err
}

func runCall[T any](
	ctx context.Context, c *Call, discard func(T), f func(context.Context) (T, error),
) (T, error) {
	var none T
	g := c.guard
	if err := g.Check(); err != nil {
		return none, err
	}
	type result struct {
		value T
		err   error
	}
	returned := make(chan result, 1)
	silenced := g.watchSilence()
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		value, err := f(ctx)
		cancel(nil)
		if c.End() {
			if err == nil && discard != nil {
				discard(value)
			}
			return
		}
		returned <- result{value, err}
	}()
	var expired <-chan time.Time
	if c.patience != endless {
		timer := g.clock.NewTimer(c.patience)
		defer timer.Stop()
		expired = timer.C()
	}
	for {
		late := false
		select {
		case r := <-returned:
			return r.value, r.err
		case <-expired:
			late = true
		case <-silenced:
		}
		if err := c.giveUp(late); err != nil {
			cancel(err)
			return none, err
		}
		silenced = g.watchSilence() // the disk has answered in this moment, or the call has returned
	}
}
