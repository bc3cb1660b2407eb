package mount

import (
	"errors"
	"sync"
	"time"
)

// patience is how long a caller waits for a target's storage.
const patience = 10 * time.Second

// ErrNotResponding says that the kernel has not come back from a call about a volume, as with an NFS server that does
// not answer. The call goes on; until it ends there is no other one about the volume.
var ErrNotResponding = errors.New("the storage of the volume does not answer")

// gate keeps storage that does not answer from taking more than one thread of this process for each volume. Nothing can
// cancel a call into a file system. So each runs in a goroutine of its own, and a caller whose patience ends leaves it
// behind. Callers for the same volume wait for their turn, with the same patience.
type gate struct {
	patience time.Duration

	mu    sync.Mutex
	calls map[string]*gateCall
}

// gateCall is a call that has not ended.
type gateCall struct {
	done chan struct{}

	mu        sync.Mutex
	abandoned bool
}

// mayProceed reports whether somebody still waits for the call. A call asks before it has an effect that nobody expects
// any more when it comes too late.
func (c *gateCall) mayProceed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.abandoned
}

func (c *gateCall) abandon() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.abandoned = true
}

func newGate(patience time.Duration) *gate {
	return &gate{patience: patience, calls: map[string]*gateCall{}}
}

// run calls f as the only call about a volume, and returns what f returns, or ErrNotResponding when the caller's
// patience ends. f must not use what belongs to the caller.
func (g *gate) run(volume string, f func(*gateCall) error) error {
	timer := time.NewTimer(g.patience)
	defer timer.Stop()
	call, err := g.enter(volume, timer.C)
	if err != nil {
		return err
	}
	result := make(chan error, 1)
	go func() {
		err := f(call)
		g.leave(volume, call)
		result <- err
	}()
	select {
	case err := <-result:
		return err
	case <-timer.C:
		call.abandon()
		return ErrNotResponding
	}
}

// enter waits until no other call about the volume runs.
func (g *gate) enter(volume string, expired <-chan time.Time) (*gateCall, error) {
	for {
		g.mu.Lock()
		other := g.calls[volume]
		if other == nil {
			call := &gateCall{done: make(chan struct{})}
			g.calls[volume] = call
			g.mu.Unlock()
			return call, nil
		}
		g.mu.Unlock()
		if !other.mayProceed() {
			return nil, ErrNotResponding // it has already been waited for in vain
		}
		select {
		case <-other.done:
		case <-expired:
			return nil, ErrNotResponding
		}
	}
}

func (g *gate) leave(volume string, call *gateCall) {
	g.mu.Lock()
	delete(g.calls, volume)
	g.mu.Unlock()
	close(call.done)
}
