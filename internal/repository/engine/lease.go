package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kopia/kopia/repo"

	"github.com/varvebackup/varve/internal/errclass"
)

const (
	// leaseCheckInterval is how often a reader's lease is checked for renewal.
	leaseCheckInterval = 10 * time.Minute
	// leaseDoubt is how long before its end a lease is no longer relied on, because others may be about to drop it.
	leaseDoubt = time.Hour
)

// Lease keeps the content of a restore point while somebody reads it, even if the restore point is deleted and maintenance frees
// what nobody refers to. It is renewed until Release. The lease of a process that dies ends by itself after three days.
type Lease struct {
	manifest *leaseManifest
	lost     func(error)
	end      context.CancelFunc
	ended    chan struct{}
}

// Lease takes a lease on a restore point. If the restore point is gone, the error is errclass.NotFound. lost is called from another
// goroutine, and at most once, if the lease has ended because it could not be renewed in time: what is being read may then be
// freed. It must not release the lease. A read-only connection cannot take a lease: errclass.Invalid.
func (c *Connection) Lease(ctx context.Context, id string, lost func(error)) (*Lease, error) {
	if c.ReadOnly() {
		return nil, fmt.Errorf("lease on restore point %s: %w: this connection is for reading only", id, errclass.Invalid)
	}
	if err := c.CheckWritable(ctx); err != nil {
		return nil, fmt.Errorf("lease on restore point %s: %w", id, err)
	}
	p, err := c.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	ticker := time.NewTicker(leaseCheckInterval)
	l, err := c.LeasePoint(ctx, p, ticker.C, lost)
	if err != nil {
		ticker.Stop()
		return nil, err
	}
	go func() {
		<-l.ended
		ticker.Stop()
	}()
	return l, nil
}

// LeasePoint is Lease for a restore point that was read before. The lease is checked for renewal at each tick.
func (c *Connection) LeasePoint(ctx context.Context, p *RestorePoint, ticks <-chan time.Time, lost func(error)) (*Lease, error) {
	l := &Lease{lost: lost, ended: make(chan struct{})}
	if err := l.takeManifest(ctx, c, p); err != nil {
		return nil, err
	}
	go l.keepRenewing(ticks)
	return l, nil
}

// Ended is closed when the lease is not renewed any more.
func (l *Lease) Ended() <-chan struct{} { return l.ended }

// takeManifest makes the writer and takes the lease.
func (l *Lease) takeManifest(ctx context.Context, r *Connection, p *RestorePoint) error {
	inner, end := context.WithCancel(context.WithoutCancel(ctx)) // The lease outlives an interrupt, and Release ends it.
	interrupt := context.AfterFunc(ctx, end)                     // But an interrupt ends the wait for it.
	s := &leaseWriter{purpose: "a reader"}
	var err error
	s.ctx, s.w, err = r.Kopia.NewDirectWriter(inner, repo.WriteSessionOptions{Purpose: "varve lease"})
	if err != nil {
		end()
		return fmt.Errorf("lease on restore point %s: %w", p.ID, err)
	}
	l.manifest, err = s.takeLease(p)
	if err == nil && l.manifest == nil {
		err = fmt.Errorf("restore point %s: %w", p.ID, errclass.NotFound)
	}
	if !interrupt() {
		err = errors.Join(err, context.Cause(ctx), l.manifest.endLease())
	}
	if err != nil {
		end()
		return errors.Join(err, s.w.Close(context.WithoutCancel(s.ctx)))
	}
	l.end = end
	return nil
}

// keepRenewing renews the lease when it is due. ticks says when to look.
func (l *Lease) keepRenewing(ticks <-chan time.Time) {
	defer close(l.ended)
	for told := false; ; {
		select {
		case <-l.manifest.writer.ctx.Done():
			return
		case <-ticks:
		}
		err := l.renewIfDue()
		if err == nil || !l.isDoubtful() {
			continue // What has failed is tried again, for days.
		}
		if !told {
			l.lost(fmt.Errorf("the lease on restore point %s has ended: %w", l.manifest.point.ID, err))
			told = true
		}
		if errors.Is(err, errclass.NotFound) {
			return
		}
	}
}

// age returns how long ago the lease was stored.
func (l *Lease) age() time.Duration { return l.manifest.writer.w.Time().Sub(l.manifest.since) }

// isDoubtful says whether others may take the owner of the lease for dead.
func (l *Lease) isDoubtful() bool { return l.age() >= LeaseLife-leaseDoubt }

func (l *Lease) renewIfDue() error {
	if l.age() < LeaseRenewal {
		return nil
	}
	if !l.isDoubtful() {
		return l.manifest.renewIfDue()
	}
	if err := l.manifest.writer.w.Refresh(l.manifest.writer.ctx); err != nil {
		return fmt.Errorf("look for what is new: %w", err)
	}
	// This process was stopped for long, or the machine slept. What the lease kept may have been freed, so another lease is
	// possible only if the restore point still exists. A lease that refers to what is gone would make every garbage collection
	// fail.
	next, err := l.manifest.writer.takeLease(l.manifest.point)
	if err != nil {
		return err
	}
	if next == nil {
		return fmt.Errorf("restore point %s: %w", l.manifest.point.ID, errclass.NotFound)
	}
	l.manifest = next
	return nil
}

// Release ends the lease.
func (l *Lease) Release() error {
	l.end()
	<-l.ended
	err := l.manifest.endLease()
	if err := errors.Join(err, l.manifest.writer.w.Close(context.WithoutCancel(l.manifest.writer.ctx))); err != nil {
		return fmt.Errorf("lease on restore point %s: %w", l.manifest.point.ID, err)
	}
	return nil
}
