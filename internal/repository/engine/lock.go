package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/manifest"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/storage"
)

const (
	// LockType is the type of the manifests that are locks.
	LockType = "varve-lock"
	// LockLife is how long a lock counts without a renewal, and lockRenewal is how often it is renewed.
	LockLife    = time.Hour
	lockRenewal = 5 * time.Minute
	// LockContest is how long after another holder took a lock that holder may be about to withdraw.
	LockContest = 10 * time.Second
	// lockAttempts is how often a lock is tried during that time.
	lockAttempts = 4
)

// errLockLost ends the work under a lock that could not be renewed.
var errLockLost = errors.New("the lock could not be renewed and others may work now")

// Lock excludes other machines from one purpose. It is a manifest, so all that it needs of the storage is that what was written
// is listed afterwards. Each machine writes its own lock and then looks for others. So of two machines at least one sees the
// other, and whoever sees another withdraws. No clock decides that. Clocks only tell when the lock of a machine that died has
// ended, and only clocks that are right.
type Lock struct {
	w       repo.DirectRepositoryWriter
	ctx     context.Context //nolint:containedctx // of the writer
	labels  map[string]string
	holder  lockHolder
	id      manifest.ID
	renewed time.Time
	lost    context.CancelCauseFunc
	done    chan struct{}
	ended   chan struct{}
}

// lockHolder is the content of a lock's manifest.
type lockHolder struct {
	Owner   string    `json:"owner"`
	Since   time.Time `json:"since"`
	Renewed time.Time `json:"renewed"`
	// Exclusive says that nobody else may use the repository while the lock is held.
	Exclusive bool `json:"exclusive,omitempty"`
}

// lockConflictError is the error for somebody else's lock.
type lockConflictError struct{ other lockHolder }

func (c *lockConflictError) Error() string {
	return fmt.Sprintf("%s has it since %s and was last heard of at %s; it counts for %s",
		c.other.Owner, c.other.Since.Format(time.RFC3339), c.other.Renewed.Format(time.RFC3339), LockLife)
}

func (c *lockConflictError) Unwrap() error { return errclass.Conflict }

// Lock takes the lock for purpose, or fails with errclass.Conflict. The returned context ends when the lock is lost.
func (c *Connection) Lock(ctx context.Context, purpose string) (context.Context, *Lock, error) {
	return c.LockAs(ctx, purpose, false)
}

// LockAs takes the lock for purpose. Backups must not begin while an exclusive one is held.
func (c *Connection) LockAs(ctx context.Context, purpose string, exclusive bool) (context.Context, *Lock, error) {
	for attempt := 1; ; attempt++ {
		inner, l, err := c.tryLock(ctx, purpose, exclusive)
		var held *lockConflictError
		if !errors.As(err, &held) || attempt == lockAttempts || c.Kopia.Time().Sub(held.other.Since) > LockContest {
			return inner, l, err
		}
		// Two that begin at once see each other and both withdraw. If they then wait for different times, one of them is first.
		timer := time.NewTimer(rand.N(time.Duration(attempt) * time.Second)) //nolint:gosec,forbidigo // no secret; others must wait for other times
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil, nil, ctx.Err()
		case <-timer.C:
		}
	}
}

// tryLock makes one attempt.
func (c *Connection) tryLock(ctx context.Context, purpose string, exclusive bool) (context.Context, *Lock, error) {
	wctx, w, err := c.Kopia.NewDirectWriter(context.WithoutCancel(ctx), repo.WriteSessionOptions{Purpose: "varve lock " + purpose})
	if err != nil {
		return nil, nil, fmt.Errorf("lock for %s: %w", purpose, err)
	}
	now := w.Time().UTC()
	l := &Lock{
		w: w, ctx: wctx, labels: map[string]string{manifest.TypeLabelKey: LockType, "purpose": purpose},
		holder: lockHolder{Owner: w.ClientOptions().UsernameAtHost(), Since: now, Exclusive: exclusive}, done: make(chan struct{}), ended: make(chan struct{}),
	}
	err = l.Renew()
	if err == nil {
		err = l.checkAlone()
	}
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("lock for %s: %w", purpose, err), l.removeManifest(), w.Close(wctx))
	}
	Reached("lock taken")
	ctx, l.lost = context.WithCancelCause(ctx)
	go l.keepRenewing()
	return ctx, l, nil
}

// Renew stores the lock, renewed as of now.
func (l *Lock) Renew() error {
	now := l.w.Time().UTC()
	l.holder.Renewed = now
	id, err := l.w.PutManifest(l.ctx, l.labels, l.holder)
	if err != nil {
		return err
	}
	if l.id != "" {
		if err := RemoveManifest(l.ctx, l.w, l.id); err != nil {
			return err
		}
	}
	l.id = id
	Reached("lock put")
	if err := l.w.Flush(l.ctx); err != nil {
		return err
	}
	Reached("lock stored")
	l.renewed = now
	return nil
}

// checkAlone fails if anybody else holds the lock or is trying to take it.
func (l *Lock) checkAlone() error {
	if err := l.w.Refresh(l.ctx); err != nil {
		return err
	}
	all, err := l.w.FindManifests(l.ctx, l.labels)
	if err != nil {
		return err
	}
	for _, m := range all {
		if m.ID == l.id {
			continue
		}
		if age := l.w.Time().Sub(m.ModTime); age > LockLife {
			if err := checkClock(l.ctx, l.w); err != nil {
				return err
			}
			if err := RemoveManifest(l.ctx, l.w, m.ID); err != nil {
				return err
			}
			continue
		}
		var other lockHolder
		if _, err := l.w.GetManifest(l.ctx, m.ID, &other); err != nil {
			return err
		}
		return &lockConflictError{other}
	}
	return nil
}

// clockBlob is stored to learn the time that the storage gives it.
const clockBlob blob.ID = "varve.clock"

// maxClockError is how far this machine's clock may be off the storage's. kopia's maintenance has the same limit.
const maxClockError = 5 * time.Minute

// checkClock fails if this machine's clock differs too much from the storage's: it could not tell by their age which locks of
// others have ended.
func checkClock(ctx context.Context, w repo.DirectRepositoryWriter) error {
	here, there := w.Time(), time.Time{}
	if err := w.BlobStorage().PutBlob(ctx, clockBlob, storage.Bytes(clockBlob), blob.PutOptions{GetModTime: &there}); err != nil {
		return fmt.Errorf("compare the clock with the storage's: %w", err)
	}
	if off := here.Sub(there); off.Abs() > maxClockError {
		return fmt.Errorf("this machine's clock says %s and the storage's %s, so that nobody knows whether the lock of another machine has ended; set the clock",
			here.UTC().Format(time.RFC3339), there.UTC().Format(time.RFC3339))
	}
	return nil
}

// keepRenewing renews the lock until it is released. If it cannot, it ends the work under the lock before others may take the lock.
func (l *Lock) keepRenewing() {
	defer close(l.ended)
	ticker := time.NewTicker(lockRenewal)
	defer ticker.Stop()
	for {
		select {
		case <-l.done:
			return
		case <-ticker.C:
		}
		stale := l.w.Time().Sub(l.renewed) > LockLife-2*lockRenewal
		if err := l.Renew(); err != nil && stale {
			l.lost(fmt.Errorf("%w: %w", errLockLost, err))
			return
		} else if stale { // This process was stopped for long, or the machine slept.
			l.lost(errLockLost)
			return
		}
	}
}

func (l *Lock) removeManifest() error {
	if l.id == "" {
		return nil
	}
	if err := RemoveManifest(l.ctx, l.w, l.id); err != nil {
		return err
	}
	Reached("lock's end put")
	if err := l.w.Flush(l.ctx); err != nil {
		return err
	}
	Reached("lock's end stored")
	return nil
}

// Release ends the lock.
func (l *Lock) Release() error {
	close(l.done)
	<-l.ended
	l.lost(nil)
	if err := errors.Join(l.removeManifest(), l.w.Close(l.ctx)); err != nil {
		return fmt.Errorf("unlock: %w", err)
	}
	return nil
}

// ClockSkew is how far the clocks of two machines may be apart. kopia refuses to maintain when a clock is 5 minutes off.
const ClockSkew = 15 * time.Minute

// CheckNoExclusiveMaintenance fails with errclass.Conflict while exclusive maintenance is running, which relies on nobody else
// using the repository.
func CheckNoExclusiveMaintenance(ctx context.Context, w repo.DirectRepositoryWriter) error {
	locks, err := w.FindManifests(ctx, map[string]string{manifest.TypeLabelKey: LockType, "purpose": MaintenancePurpose})
	if err != nil {
		return fmt.Errorf("look for exclusive maintenance: %w", err)
	}
	for _, m := range locks {
		var h lockHolder
		_, err := w.GetManifest(ctx, m.ID, &h)
		if errors.Is(err, manifest.ErrNotFound) {
			continue
		}
		if err != nil {
			return fmt.Errorf("look for exclusive maintenance: %w", err)
		}
		switch {
		case !h.Exclusive:
		case w.Time().Sub(m.ModTime) <= LockLife:
			return fmt.Errorf("exclusive maintenance: %w", &lockConflictError{h})
		default:
			if err := checkClock(ctx, w); err != nil {
				return fmt.Errorf("exclusive maintenance: %w", err)
			}
		}
	}
	return nil
}

// MaintenancePurpose is the purpose of maintenance's lock.
const MaintenancePurpose = "maintenance"
