package repository

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/manifest"
)

const (
	lockType = "varve-lock"
	// lockLife is how long a lock counts without a renewal, and lockRenewal is how often it is renewed.
	lockLife    = time.Hour
	lockRenewal = 5 * time.Minute
	// lockAttempts is how often a lock is tried if its other holder took it less than lockContest ago and may be about to
	// withdraw.
	lockAttempts = 4
	lockContest  = 10 * time.Second
)

// errLockLost ends the work under a lock that could not be renewed.
var errLockLost = errors.New("the lock could not be renewed and others may work now")

// lock excludes other machines from one purpose. It is a manifest, so all that it needs of the storage is that what was written
// is listed afterwards. Each machine writes its own lock and then looks for others. So of two machines at least one sees the
// other, and whoever sees another withdraws. No clock decides that. Clocks only tell when the lock of a machine that died has
// ended, and only clocks that are right.
type lock struct {
	w       repo.DirectRepositoryWriter
	ctx     context.Context //nolint:containedctx // of the writer
	labels  map[string]string
	holder  holder
	id      manifest.ID
	renewed time.Time
	lost    context.CancelCauseFunc
	done    chan struct{}
	ended   chan struct{}
}

// holder is the content of a lock's manifest.
type holder struct {
	Owner   string    `json:"owner"`
	Since   time.Time `json:"since"`
	Renewed time.Time `json:"renewed"`
	// Exclusive says that nobody else may use the repository while the lock is held.
	Exclusive bool `json:"exclusive,omitempty"`
}

// conflict is the error for somebody else's lock.
type conflict struct{ other holder }

func (c *conflict) Error() string {
	return fmt.Sprintf("%s has it since %s and was last heard of at %s; it counts for %s",
		c.other.Owner, c.other.Since.Format(time.RFC3339), c.other.Renewed.Format(time.RFC3339), lockLife)
}

func (c *conflict) Unwrap() error { return ErrConflict }

// lock takes the lock for purpose, or fails with ErrConflict. The returned context ends when the lock is lost.
func (r *Repository) lock(ctx context.Context, purpose string) (context.Context, *lock, error) {
	return r.lockAs(ctx, purpose, false)
}

// lockAs takes the lock for purpose. Backups must not begin while an exclusive one is held.
func (r *Repository) lockAs(ctx context.Context, purpose string, exclusive bool) (context.Context, *lock, error) {
	for attempt := 1; ; attempt++ {
		held, l, err := r.tryLock(ctx, purpose, exclusive)
		var c *conflict
		if !errors.As(err, &c) || attempt == lockAttempts || r.rep.Time().Sub(c.other.Since) > lockContest {
			return held, l, err
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
func (r *Repository) tryLock(ctx context.Context, purpose string, exclusive bool) (context.Context, *lock, error) {
	wctx, w, err := r.rep.NewDirectWriter(context.WithoutCancel(ctx), repo.WriteSessionOptions{Purpose: "varve lock " + purpose})
	if err != nil {
		return nil, nil, fmt.Errorf("lock for %s: %w", purpose, err)
	}
	now := w.Time().UTC()
	l := &lock{
		w: w, ctx: wctx, labels: map[string]string{manifest.TypeLabelKey: lockType, "purpose": purpose},
		holder: holder{Owner: w.ClientOptions().UsernameAtHost(), Since: now, Exclusive: exclusive}, done: make(chan struct{}), ended: make(chan struct{}),
	}
	err = l.write()
	if err == nil {
		err = l.alone()
	}
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("lock for %s: %w", purpose, err), l.remove(), w.Close(wctx))
	}
	reached("lock taken")
	ctx, l.lost = context.WithCancelCause(ctx)
	go l.keep()
	return ctx, l, nil
}

// write stores the lock, renewed as of now.
func (l *lock) write() error {
	now := l.w.Time().UTC()
	l.holder.Renewed = now
	id, err := l.w.PutManifest(l.ctx, l.labels, l.holder)
	if err != nil {
		return err
	}
	if l.id != "" {
		if err := removeManifest(l.ctx, l.w, l.id); err != nil {
			return err
		}
	}
	l.id = id
	reached("lock put")
	if err := l.w.Flush(l.ctx); err != nil {
		return err
	}
	reached("lock stored")
	l.renewed = now
	return nil
}

// alone fails if anybody else holds the lock or is trying to take it.
func (l *lock) alone() error {
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
		if age := l.w.Time().Sub(m.ModTime); age > lockLife {
			if err := clockIsRight(l.ctx, l.w); err != nil {
				return err
			}
			if err := removeManifest(l.ctx, l.w, m.ID); err != nil {
				return err
			}
			continue
		}
		var other holder
		if _, err := l.w.GetManifest(l.ctx, m.ID, &other); err != nil {
			return err
		}
		return &conflict{other}
	}
	return nil
}

// clockBlob is stored to learn the time that the storage gives it.
const clockBlob blob.ID = "varve.clock"

// maxClockOff is how far this machine's clock may be off the storage's. kopia's maintenance has the same limit.
const maxClockOff = 5 * time.Minute

// clockIsRight fails if this machine's clock differs too much from the storage's: it could not tell by their age which locks of
// others have ended.
func clockIsRight(ctx context.Context, w repo.DirectRepositoryWriter) error {
	here, there := w.Time(), time.Time{}
	if err := w.BlobStorage().PutBlob(ctx, clockBlob, blobBytes(clockBlob), blob.PutOptions{GetModTime: &there}); err != nil {
		return fmt.Errorf("compare the clock with the storage's: %w", err)
	}
	if off := here.Sub(there); off.Abs() > maxClockOff {
		return fmt.Errorf("this machine's clock says %s and the storage's %s, so that nobody knows whether the lock of another machine has ended; set the clock",
			here.UTC().Format(time.RFC3339), there.UTC().Format(time.RFC3339))
	}
	return nil
}

// keep renews the lock until it is released. If it cannot, it ends the work under the lock before others may take the lock.
func (l *lock) keep() {
	defer close(l.ended)
	ticker := time.NewTicker(lockRenewal)
	defer ticker.Stop()
	for {
		select {
		case <-l.done:
			return
		case <-ticker.C:
		}
		stale := l.w.Time().Sub(l.renewed) > lockLife-2*lockRenewal
		if err := l.write(); err != nil && stale {
			l.lost(fmt.Errorf("%w: %w", errLockLost, err))
			return
		} else if stale { // This process was stopped for long, or the machine slept.
			l.lost(errLockLost)
			return
		}
	}
}

func (l *lock) remove() error {
	if l.id == "" {
		return nil
	}
	if err := removeManifest(l.ctx, l.w, l.id); err != nil {
		return err
	}
	reached("lock's end put")
	if err := l.w.Flush(l.ctx); err != nil {
		return err
	}
	reached("lock's end stored")
	return nil
}

// release ends the lock.
func (l *lock) release() error {
	close(l.done)
	<-l.ended
	l.lost(nil)
	if err := errors.Join(l.remove(), l.w.Close(l.ctx)); err != nil {
		return fmt.Errorf("unlock: %w", err)
	}
	return nil
}
