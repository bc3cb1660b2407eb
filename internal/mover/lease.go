package mover

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository"
)

// leaseLimits bound how long a job waits for its lease.
type leaseLimits struct {
	// grace is how long taking or ending a lease may take once the job has been cancelled.
	grace time.Duration
	// end is how long ending it may take otherwise, before the grace: what the job has done is done, and the lease
	// ends by itself.
	end time.Duration
}

var defaultLeaseLimits = leaseLimits{grace: 8 * time.Second, end: time.Minute}

// WithLease calls f under a lease, which keeps what the restore point with this ID holds, so that deleting the
// restore point does not end f. A repository that cannot be written, because its storage is full or it is damaged,
// can still be read: then f runs without a lease, after a warning. On a read-only connection, f runs without a lease
// and without a warning. warn may be called from another goroutine. If the storage does not answer when f has
// returned, WithLease waits a minute for the lease's end, or 8 seconds if ctx has ended.
func WithLease(ctx context.Context, r *repository.Repository, id string, warn func(error), f func() error) error {
	return withLease(ctx, r, id, defaultLeaseLimits, nil, warn, f)
}

// withLease is WithLease with other limits. abandoned is called when the end of a lease that was abandoned has come;
// it may be nil.
func withLease(
	ctx context.Context, r *repository.Repository, id string, limits leaseLimits, abandoned func(), warn func(error),
	f func() error,
) error {
	if r.ReadOnly() {
		return f()
	}
	l, err := abandonAfter(ctx, limits.grace, nil, func() (*repository.Lease, error) {
		return r.Lease(ctx, id, func(err error) {
			warn(fmt.Errorf("%w; if it is deleted, reading it may fail from now on", err))
		})
	})
	switch {
	case err == nil:
		defer func() {
			ending, cancel := context.WithTimeout(ctx, limits.end)
			defer cancel()
			_, left := abandonAfter(ending, limits.grace, abandoned,
				func() (struct{}, error) { return struct{}{}, l.Release() })
			if left != nil {
				warn(fmt.Errorf("%w; it ends by itself after three days", left))
			}
		}()
	case errors.Is(err, errclass.NotFound) || ctx.Err() != nil:
		return err
	default:
		warn(fmt.Errorf("%w; if it is deleted meanwhile, reading it may fail", err))
	}
	return f()
}
