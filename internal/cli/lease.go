package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository"
)

// underLease calls f under a lease, which keeps what the restore point holds, so that deleting it does not end f. A
// repository that cannot be written, because its storage is full or it is damaged, can still be read: then f runs
// without a lease, after a warning to the user.
func (s *session) underLease(ctx context.Context, r *repository.Repository, id string, f func() error) (err error) {
	if r.ReadOnly() {
		return f()
	}
	l, err := r.Lease(ctx, id, func(err error) {
		s.warn(fmt.Errorf("%w; if it is deleted, reading it may fail from now on", err))
	})
	switch {
	case err == nil:
		defer func() {
			if left := l.Release(); left != nil {
				s.warn(fmt.Errorf("%w; it ends by itself after three days", left))
			}
		}()
	case errors.Is(err, errclass.NotFound) || ctx.Err() != nil:
		return err
	default:
		s.warn(fmt.Errorf("%w; if it is deleted meanwhile, reading it may fail", err))
	}
	return f()
}

// warn reports what does not end the command.
func (s *session) warn(err error) {
	fmt.Fprintf(s.Streams.Err, "warning: %s\n", human.Line(err.Error()))
}
