package diskguard

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"
)

// A moment of silence does not end a call that may take long: its caller gets what it returns.
func TestGuard_waitsOnAfterAMomentOfSilence(t *testing.T) {
	t.Parallel()
	for range 500 {
		g, end := New(clock.RealClock{}), make(chan struct{})
		returned := make(chan error, 64)
		for range cap(returned) {
			began := make(chan struct{})
			go func() {
				returned <- doWithin(t.Context(), g, "seal", endless, func(context.Context) error {
					close(began)
					<-end
					return nil
				})
			}()
			<-began
		}
		late := g.Start("look")
		if err := late.GiveUp(); !errors.Is(err, ErrSilent) {
			t.Fatal(err)
		}
		late.End() // before all those that wait have been told
		close(end)
		for range cap(returned) {
			select {
			case err := <-returned:
				if err != nil && !errors.Is(err, ErrSilent) {
					t.Fatal(err)
				}
			case <-time.After(time.Minute):
				t.Fatal("a call has returned, and its caller is not told")
			}
		}
	}
}

// A call that is not late does not make a disk silent that answers again.
func TestCall_isGivenUpOnlyWhileTheDiskIsSilent(t *testing.T) {
	t.Parallel()
	g := New(clock.RealClock{})
	long, short := g.Start("seal"), g.Start("list")
	long.patience = endless
	for _, c := range []*Call{long, short} {
		if err := c.giveUp(false); err != nil || c.End() || g.Check() != nil {
			t.Errorf("%s: given up: %v, %v", c.what, err, g.Check())
		}
	}
}

// A call that is given up is canceled, and does not go on for ever beside the next attempt.
func TestGuard_cancelsWhatItGivesUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g, stopped := New(clock.RealClock{}), make(chan error, 1)
		err := doWithin(t.Context(), g, "repair", Patience, func(ctx context.Context) error {
			<-ctx.Done()
			stopped <- context.Cause(ctx)
			return ctx.Err()
		})
		if cause := <-stopped; !errors.Is(err, ErrSilent) || !errors.Is(cause, ErrSilent) {
			t.Errorf("%v, canceled because of %v", err, cause)
		}
		synctest.Wait()
		if err := g.Check(); err != nil {
			t.Errorf("it has returned: %v", err)
		}
	})
}
