// Package freeze freezes the file systems of a guest for the moment at which a backup is taken, and makes sure that the
// guest never stays frozen: not when a caller hangs, not when the agent refuses, and not when the launcher stops.
//
// All methods are safe for concurrent use.
package freeze

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/varvebackup/varve/internal/guard"
)

const (
	// Timeout is how long the guest agent has to freeze the file systems.
	Timeout = 10 * time.Second
	// Limit is the time after the request at which the watchdog thaws the guest no matter what.
	Limit = 30 * time.Second
	// ConfirmTimeout is how long the guest agent has to confirm that a guest that somebody else froze is still
	// frozen.
	ConfirmTimeout = 2 * time.Second
	// ThawPatience is how long Thaw waits for the answer of the agent before it leaves the thaw to the watchdog.
	ThawPatience = 5 * time.Second
	// AnswerPatience is how long a backup waits in the end for the answer to a thaw, which Windows gives when all that
	// prepared for the freeze is done. It is above what one attempt takes.
	AnswerPatience = 25 * time.Second

	// thawTimeout bounds one attempt to thaw, and thawEvery is the pause between two attempts.
	thawTimeout = 5 * time.Second
	thawEvery   = 500 * time.Millisecond
)

var (
	// ErrFrozen says that the guest is still frozen for an earlier backup.
	ErrFrozen = errors.New("the guest is still frozen")
	// ErrUnanswered says that nobody knows yet whether the guest was frozen until the thaw.
	ErrUnanswered = errors.New("its agent has not answered the thaw")

	// errNothingFrozen: ZFS, FAT and network file systems, for instance, cannot be frozen.
	errNothingFrozen = errors.New("the guest has no file system that its agent can freeze")
	errGuestEnded    = errors.New("the guest ended before its agent answered the thaw")
)

// Agent freezes and thaws the guest's file systems.
type Agent interface {
	FSFrozen(ctx context.Context, timeout time.Duration) (bool, error)
	// Freeze returns how many file systems it froze, and Thaw how many were frozen until then.
	Freeze(ctx context.Context, timeout time.Duration) (frozen int, err error)
	Thaw(ctx context.Context) (thawed int, err error)
}

// Freezer freezes a guest and makes sure that it never stays frozen. Each freeze has its own goroutine, started
// before the freeze. It waits at most 30 s for a request to thaw, and then thaws again and again until that works or
// the guest has ended.
type Freezer struct {
	agent   Agent
	clock   clock.WithTicker
	log     *slog.Logger
	changed func()
	// life ends with the guest.
	life context.Context //nolint:containedctx // the guest's life, not a call's

	mu        sync.Mutex
	current   *Frozen
	watchdogs sync.WaitGroup
}

// New returns the freezer of a guest whose life ends with life. It calls changed whenever Frozen changes.
func New(life context.Context, agent Agent, c clock.WithTicker, log *slog.Logger, changed func()) *Freezer {
	return &Freezer{agent: agent, clock: c, log: log, changed: changed, life: life}
}

// Frozen says whether the guest is, or may be, frozen.
func (f *Freezer) Frozen() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.current != nil
}

// Wait returns when the freezer has no goroutine left, which is soon after life has ended.
func (f *Freezer) Wait() { f.watchdogs.Wait() }

// Frozen is a frozen guest. Thaw must be called.
type Frozen struct {
	clock clock.WithTicker
	since time.Time
	limit time.Duration

	once sync.Once
	// foreign: somebody else froze the guest before, and will thaw it.
	foreign bool
	// count is how many file systems were frozen.
	count   int
	release chan struct{} // closed by Thaw
	expired chan struct{} // closed before the guest is thawed without a request
	thawed  chan struct{} // closed when the guest is thawed or has ended
	after   time.Duration // valid once thawed is closed
	// early says why the first attempt to thaw suggests that the freeze did not hold until then. It is valid once
	// thawed is closed. A guest that cannot stay frozen for long, such as Windows, shows only at the thaw that it did
	// not wait for it.
	early error
}

// Freeze freezes the guest's file systems. A guest that somebody else has already frozen counts as frozen, and is not
// thawed later. After an error the guest is not frozen, or is being thawed.
func (f *Freezer) Freeze(ctx context.Context) (*Frozen, error) { return f.FreezeFor(ctx, Limit) }

// FreezeFor is Freeze with another limit, after which the watchdog thaws the guest. It counts up to Limit; 0 is Limit.
func (f *Freezer) FreezeFor(ctx context.Context, limit time.Duration) (*Frozen, error) {
	if limit <= 0 || limit > Limit {
		limit = Limit
	}
	z := &Frozen{
		clock: f.clock, limit: limit, release: make(chan struct{}), expired: make(chan struct{}),
		thawed: make(chan struct{}),
	}
	if !f.beginFreeze(z) {
		return nil, ErrFrozen
	}
	ctx, cancel := context.WithTimeout(ctx, Timeout+thawTimeout)
	defer cancel()
	foreign, err := f.agent.FSFrozen(ctx, Timeout)
	if err != nil {
		f.endFreeze()
		return nil, fmt.Errorf("ask whether it is frozen: %w", err)
	}
	z.foreign, z.since = foreign, f.clock.Now()
	f.watchdogs.Go(func() { f.watchFreeze(z) })
	if foreign {
		return z, nil
	}
	if z.count, err = f.agent.Freeze(ctx, Timeout); err != nil {
		// A freeze that failed or came too late may still have frozen something.
		z.Thaw()
		return nil, fmt.Errorf("freeze: %w", err)
	}
	if z.count <= 0 {
		// The agent has run its hooks, and thaws what it holds.
		z.Thaw()
		return nil, errNothingFrozen
	}
	return z, nil
}

func (f *Freezer) beginFreeze(z *Frozen) bool {
	f.mu.Lock()
	if f.current != nil {
		f.mu.Unlock()
		return false
	}
	f.current = z
	f.mu.Unlock()
	f.changed()
	return true
}

func (f *Freezer) endFreeze() {
	f.mu.Lock()
	f.current = nil
	f.mu.Unlock()
	f.changed()
}

// watchFreeze is the watchdog of one freeze.
func (f *Freezer) watchFreeze(z *Frozen) {
	timer := f.clock.NewTimer(z.limit)
	defer timer.Stop()
	frozen := 0
	select {
	case <-z.release:
		frozen = z.count
	case <-timer.C():
		close(z.expired)
		f.log.Error("guest frozen for too long, thawing it", "limit", z.limit)
	case <-f.life.Done():
	}
	if !z.foreign {
		z.early = f.keepThawing(frozen)
	}
	z.after = f.clock.Since(z.since)
	f.endFreeze()
	close(z.thawed)
}

// keepThawing returns when the guest is thawed or has ended. It returns why the first attempt suggests that so many file
// systems did not stay frozen until then, or nil.
func (f *Freezer) keepThawing(frozen int) (early error) {
	for first := true; f.life.Err() == nil; first = false {
		thawed, err := f.thawOnce()
		switch {
		case !first:
		case err != nil:
			early = err
		case thawed < frozen:
			early = fmt.Errorf("of %d frozen file systems %d were frozen until the thaw", frozen, thawed)
		}
		if err == nil || f.isThawed() {
			return early
		}
		f.log.Warn("guest could not be thawed, trying again", "error", err)
		timer := f.clock.NewTimer(thawEvery)
		select {
		case <-timer.C():
		case <-f.life.Done():
			timer.Stop()
		}
	}
	return errors.Join(early, errGuestEnded)
}

func (f *Freezer) thawOnce() (thawed int, err error) {
	ctx, cancel := context.WithTimeout(f.life, thawTimeout)
	defer cancel()
	err = guard.Call(func() error { // nobody else thaws the guest
		var err error
		thawed, err = f.agent.Thaw(ctx)
		return err
	})
	return thawed, err
}

// isThawed reports whether the agent says that the guest is thawed. An agent whose hook fails after the thaw refuses
// each attempt, although nothing is frozen.
func (f *Freezer) isThawed() bool {
	frozen, err := f.askFrozen(f.life)
	return err == nil && !frozen
}

// askFrozen asks the agent whether the guest is frozen, no matter who froze it.
func (f *Freezer) askFrozen(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*ConfirmTimeout)
	defer cancel()
	return f.agent.FSFrozen(ctx, ConfirmTimeout)
}

// StillFrozen returns nil if a guest that somebody else froze is still frozen. Otherwise it says why that is
// doubtful: the guest was thawed, or its agent does not answer.
func (f *Freezer) StillFrozen(ctx context.Context) error {
	frozen, err := f.askFrozen(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("ask whether it is still frozen: %w", err)
	case !frozen:
		return errors.New("whoever froze it has thawed it, or it thawed by itself")
	}
	return nil
}

// IsOver says that the guest is thawed, was not thawed in time, or has ended.
func (z *Frozen) IsOver() bool {
	select {
	case <-z.expired:
		return true
	case <-z.release:
		return true
	case <-z.thawed:
		return true
	default:
		return false
	}
}

// Foreign says that somebody else froze the guest.
func (z *Frozen) Foreign() bool { return z.foreign }

// ThawedEarly returns nil if the guest was frozen from Freeze until Thaw. Otherwise it says why that is doubtful:
// this freezer thawed it at the limit, it thawed by itself, somebody else thawed it, or its agent has not answered the
// thaw, which is ErrUnanswered. Call it after Thaw.
func (z *Frozen) ThawedEarly() error {
	select {
	case <-z.expired:
		return fmt.Errorf("it was frozen for %s, which is the limit", z.limit)
	default:
	}
	select {
	case <-z.thawed:
		return z.early
	default:
		return ErrUnanswered
	}
}

// Thaw requests the thaw and waits for it for a while. It returns how long the guest was frozen: from the request to
// freeze until the agent answered the thaw, or until now if it has not answered. That is an upper bound of what a
// writer in the guest felt.
func (z *Frozen) Thaw() time.Duration { return z.AwaitThaw(context.Background(), ThawPatience) }

func (z *Frozen) AwaitThaw(ctx context.Context, patience time.Duration) time.Duration {
	z.once.Do(func() { close(z.release) })
	timer := z.clock.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-z.thawed:
		return z.after
	case <-timer.C():
	case <-ctx.Done():
	}
	return z.clock.Since(z.since)
}
