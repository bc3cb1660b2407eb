package mover

import (
	"context"
	"fmt"
	"time"

	"github.com/varvebackup/varve/internal/errclass"
)

// ErrAbandoned is of class Unknown: a job was cancelled, did not end in time, and goes on alone. It may still succeed.
// The job still uses the repository, the disks and the callbacks that it was given, so the process should end soon.
var ErrAbandoned = errclass.New(errclass.Unknown, "outcome unknown: the job was cancelled and did not end")

// abandonAfter calls f and returns what it returns. If f does not return within grace after ctx has ended, abandonAfter
// returns ErrAbandoned. A grace of 0 waits for f as long as it takes. ended is called when an f that was abandoned
// returns; it may be nil.
func abandonAfter[T any](ctx context.Context, grace time.Duration, ended func(), f func() (T, error)) (T, error) {
	if grace <= 0 {
		return f()
	}
	type outcome struct {
		value T
		err   error
	}
	done := make(chan outcome, 1)
	go func() {
		value, err := f()
		done <- outcome{value, err}
	}()
	select {
	case o := <-done:
		return o.value, o.err
	case <-ctx.Done():
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case o := <-done:
		return o.value, o.err
	case <-timer.C:
	}
	if ended != nil {
		go func() { <-done; ended() }()
	}
	var none T
	return none, fmt.Errorf("%w within %s: %w", ErrAbandoned, grace, context.Cause(ctx))
}
