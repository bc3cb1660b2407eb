package wait

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestFor_callsUntilItHolds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begun, calls := time.Now(), 0
		err := For(t.Context(), time.Minute, "the third call", func(context.Context) (bool, string, error) {
			calls++
			return calls == 3, "", nil
		})
		if took := time.Since(begun); err != nil || calls != 3 || took != 40*time.Millisecond {
			t.Errorf("%v after %d calls and %s", err, calls, took)
		}
	})
}

func TestFor_endsAtItsLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		err := For(t.Context(), time.Minute, "the guest to run", func(context.Context) (bool, string, error) { return false, "phase Scheduled", nil })
		if took := time.Since(begun); !errors.Is(err, context.DeadlineExceeded) || took != time.Minute {
			t.Errorf("%v after %s", err, took)
		}
		for _, word := range []string{"the guest to run", "1m0s", "phase Scheduled"} {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("no %q in: %v", word, err)
			}
		}
	})
}

func TestFor_endsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := For(ctx, time.Hour, "nothing", func(context.Context) (bool, string, error) { return false, "", nil })
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestFor_endsAtAnError(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	err := For(t.Context(), time.Hour, "nothing", func(context.Context) (bool, string, error) { return true, "the pod", broken })
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), "last seen: the pod") {
		t.Error(err)
	}
}

func TestSucceeds(t *testing.T) {
	t.Parallel()
	calls := 0
	Succeeds(t, time.Minute, "the second call", func() error {
		if calls++; calls == 2 {
			return nil
		}
		return errors.New("not yet")
	})
	t.Cleanup(func() { Until(t, time.Minute, "the fourth call", func() bool { calls++; return calls > 3 }) })
	Until(t, time.Minute, "the third call", func() bool { calls++; return calls == 3 })
}
