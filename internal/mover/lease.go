package mover

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository"
)

// leaseGrace is how long taking or ending a lease may take once the job has been cancelled.
const leaseGrace = 8 * time.Second

// WithLease calls f under a lease, which keeps what the restore point with this ID holds, so that deleting the restore
// point does not end f. A repository that cannot be written, because its storage is full or it is damaged, can still be
// read: then f runs without a lease, after a warning. On a read-only connection, f runs without a lease and without a
// warning. warn may be called from another goroutine. If ctx has ended and the storage does not answer, WithLease waits
// leaseGrace for the lease's end.
func WithLease(ctx context.Context, r *repository.Repository, id string, warn func(error), f func() error) error {
	return withLease(ctx, r, id, leaseGrace, nil, warn, f)
}

// withLease is WithLease with another grace. abandoned is called when the end of a lease that was abandoned has come; it may be nil.
func withLease(ctx context.Context, r *repository.Repository, id string, grace time.Duration, abandoned func(), warn func(error), f func() error) error {
	if r.ReadOnly() {
		return f()
	}
	l, err := abandonAfter(ctx, grace, nil, func() (*repository.Lease, error) {
		return r.Lease(ctx, id, func(err error) {
			warn(fmt.Errorf("%w; if it is deleted, reading it may fail from now on", err))
		})
	})
	switch {
	case err == nil:
		defer func() {
			_, left := abandonAfter(ctx, grace, abandoned, func() (struct{}, error) { return struct{}{}, l.Release() })
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
