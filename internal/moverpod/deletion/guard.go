package deletion

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/repository"
)

// guard says which restore points must stay.
type guard struct {
	lock *repository.ObjectLock // nil: nothing is locked
	now  time.Time
}

func newGuard(ctx context.Context, r *repository.Repository, now time.Time) (guard, error) {
	lock, err := r.ObjectLock(ctx)
	if err != nil {
		return guard{}, fmt.Errorf("read the lock of the repository: %w", err)
	}
	return guard{lock, now}, nil
}

// keeps returns why a restore point stays; nil if nothing keeps it.
func (g guard) keeps(p *repository.RestorePoint) *datamove.Kept {
	if len(p.Pins) > 0 {
		return &datamove.Kept{Why: datamove.KeptPinned}
	}
	if g.lock != nil {
		if until := p.Time.Add(g.lock.Period).UTC().Truncate(time.Second); until.After(g.now) {
			return &datamove.Kept{Why: datamove.KeptLocked, Until: &until}
		}
	}
	return nil
}

// remove deletes restore points, and returns those that somebody has pinned meanwhile. A restore point that is not there is deleted.
func remove(ctx context.Context, r *repository.Repository, ids []string) (pinned []string, err error) {
	if len(ids) == 0 {
		return nil, nil
	}
	if err := r.Delete(ctx, ids...); err == nil || !errors.Is(err, repository.ErrNoPoint) && !errors.Is(err, repository.ErrPinned) {
		return nil, err
	}
	// One of them is gone or pinned, so none was deleted.
	for _, id := range ids {
		switch err := r.Delete(ctx, id); {
		case errors.Is(err, repository.ErrPinned):
			pinned = append(pinned, id)
		case err != nil && !errors.Is(err, repository.ErrNoPoint):
			return pinned, err
		}
	}
	return pinned, nil
}
