// Package wait polls until something holds. There is one loop for all tests: it has a deadline, ends with its context,
// and fails with what it waited for and what it saw last.
package wait

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// For calls check until it reports true. It fails with check's error, or, when the limit has passed or the context
// has ended, with what was waited for and what check saw last. The context that check gets ends with the limit.
func For(ctx context.Context, limit time.Duration, what string, check func(ctx context.Context) (holds bool, seen string, err error)) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(interval(limit))
	defer tick.Stop()
	var last string
	for {
		holds, seen, err := check(ctx)
		if holds && err == nil {
			return nil
		}
		if seen != "" {
			last = seen
		}
		if err == nil {
			select {
			case <-tick.C:
				continue
			case <-ctx.Done():
				err = ctx.Err()
			}
		}
		err = fmt.Errorf("wait for %s (%s): %w", what, limit, err)
		if last != "" {
			err = fmt.Errorf("%w; last seen: %s", err, last)
		}
		return err
	}
}

// interval is the time between two calls: short waits are short, and long ones cost little.
func interval(limit time.Duration) time.Duration {
	return min(max(limit/3000, time.Millisecond), 200*time.Millisecond)
}

// Until calls holds until it returns true, and ends the test if it does not within the limit. Cleanups may call it.
func Until(tb testing.TB, limit time.Duration, what string, holds func() bool) {
	tb.Helper()
	err := For(context.WithoutCancel(tb.Context()), limit, what, func(context.Context) (bool, string, error) { return holds(), "", nil })
	if err != nil {
		tb.Fatal(err)
	}
}

// Succeeds calls try until it returns nil, and ends the test with its last error if it does not within the limit.
// Cleanups may call it.
func Succeeds(tb testing.TB, limit time.Duration, what string, try func() error) {
	tb.Helper()
	err := For(context.WithoutCancel(tb.Context()), limit, what, func(context.Context) (bool, string, error) {
		if err := try(); err != nil {
			return false, err.Error(), nil //nolint:nilerr // the wait ends with the last one
		}
		return true, "", nil
	})
	if err != nil {
		tb.Fatal(err)
	}
}
