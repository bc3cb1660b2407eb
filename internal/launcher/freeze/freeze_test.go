package freeze

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"k8s.io/utils/clock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeAgent is a fake of a guest's agent with two file systems. A hook that is not nil decides how a call ends; before
// that, the call does what it does.
type fakeAgent struct {
	mu     sync.Mutex
	frozen bool
	thaws  int

	onFreeze, onThaw func() error
}

func (a *fakeAgent) FSFrozen(context.Context, time.Duration) (bool, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.frozen, nil
}

func (a *fakeAgent) Freeze(context.Context, time.Duration) (int, error) {
	a.mu.Lock()
	a.frozen = true // a failed freeze may have frozen something
	a.mu.Unlock()
	if a.onFreeze != nil {
		return 2, a.onFreeze()
	}
	return 2, nil
}

func (a *fakeAgent) Thaw(context.Context) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.thaws++
	thawed := 0
	if a.frozen {
		thawed = 2
	}
	a.frozen = false
	if a.onThaw != nil {
		return 0, a.onThaw()
	}
	return thawed, nil
}

// newFreezer returns the freezer of a guest with this agent, and a function that ends the guest.
func newFreezer(t *testing.T, a *fakeAgent) (*Freezer, context.CancelFunc) {
	t.Helper()
	life, end := context.WithCancel(context.Background())
	t.Cleanup(end)
	return New(life, a, clock.RealClock{}, slog.New(slog.DiscardHandler), func() {}), end
}

func freezeNow(t *testing.T, f *Freezer) *Frozen {
	t.Helper()
	frozen, err := f.Freeze(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return frozen
}

func TestFreezer_freezesAndThaws(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := &fakeAgent{}
		f, _ := newFreezer(t, a)
		frozen := freezeNow(t, f)
		if _, err := f.Freeze(t.Context()); !errors.Is(err, ErrFrozen) || !f.Frozen() {
			t.Errorf("a second freeze: %v", err)
		}
		time.Sleep(time.Second)
		if took := frozen.Thaw(); took != time.Second || frozen.ThawedEarly() != nil || f.Frozen() || a.frozen {
			t.Errorf("frozen for %s, thawed early: %v", took, frozen.ThawedEarly())
		}
	})
}

// A hook in the guest that fails after the thaw makes the agent refuse each thaw of a guest that is not frozen.
func TestFreezer_endsWhenTheAgentRefusesToThawAThawedGuest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := &fakeAgent{onThaw: func() error { return errors.New("fsfreeze hook has failed with status 1") }}
		f, _ := newFreezer(t, a)
		for range 2 {
			frozen := freezeNow(t, f)
			frozen.Thaw()
			if err := frozen.ThawedEarly(); err == nil || errors.Is(err, ErrUnanswered) {
				t.Errorf("it was refused: %v", err)
			}
		}
		if a.thaws != 2 {
			t.Errorf("%d thaws of two freezes", a.thaws)
		}
	})
}

// The watchdog thaws while the agent is still busy with the freeze.
func TestFreezer_freezeMayOutlastTheWatchdog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, _ := newFreezer(t, &fakeAgent{onFreeze: func() error { time.Sleep(Limit + time.Second); return nil }})
		frozen := freezeNow(t, f)
		frozen.Thaw()
		if frozen.ThawedEarly() == nil {
			t.Error("the watchdog has thawed, and the freeze held")
		}
	})
}

// A failed freeze may have frozen something. It is thawed at once, not when the watchdog fires.
func TestFreezer_thawsARefusedFreezeAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		refused := errors.New("refused")
		a := &fakeAgent{onFreeze: func() error { return refused }}
		f, end := newFreezer(t, a)
		if _, err := f.Freeze(t.Context()); !errors.Is(err, refused) {
			t.Error(err)
		}
		synctest.Wait()
		if a.frozen || f.Frozen() || a.thaws != 1 {
			t.Errorf("frozen: %t, thaws: %d", a.frozen, a.thaws)
		}
		end()
		f.Wait()
	})
}

func TestThawedEarly_guestThatEndsConfirmsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, end := newFreezer(t, &fakeAgent{})
		frozen := freezeNow(t, f)
		end()
		f.Wait()
		frozen.Thaw()
		if err := frozen.ThawedEarly(); !errors.Is(err, errGuestEnded) {
			t.Error(err)
		}
	})
}
