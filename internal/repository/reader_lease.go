package repository

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kopia/kopia/repo"
)

const (
	// leaseLook is how often a reader's lease is checked for renewal.
	leaseLook = 10 * time.Minute
	// leaseDoubt is how long before its end a lease is no longer relied on, because others may be about to drop it.
	leaseDoubt = time.Hour
)

// Lease keeps the content of a restore point while somebody reads it, even if the restore point is deleted and maintenance frees
// what nobody refers to. It is renewed until Release. The lease of a process that dies ends by itself after three days.
type Lease struct {
	lease *lease
	lost  func(error)
	end   context.CancelFunc
	ended chan struct{}
}

// Lease takes a lease on a restore point. If the restore point is gone, the error is ErrNotFound. lost is called from another
// goroutine, and at most once, if the lease has ended because it could not be renewed in time: what is being read may then be
// freed. A read-only connection cannot take a lease: ErrInvalid.
func (r *Repository) Lease(ctx context.Context, id string, lost func(error)) (*Lease, error) {
	if r.ReadOnly() {
		return nil, fmt.Errorf("lease on restore point %s: %w: this connection is for reading only", id, ErrInvalid)
	}
	if err := r.writable(ctx); err != nil {
		return nil, fmt.Errorf("lease on restore point %s: %w", id, err)
	}
	p, err := r.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	l := &Lease{lost: lost, ended: make(chan struct{})}
	if err := l.take(ctx, r, p); err != nil {
		return nil, err
	}
	ticker := time.NewTicker(leaseLook)
	go func() {
		defer ticker.Stop()
		l.keep(ticker.C)
	}()
	return l, nil
}

// take makes the writer and takes the lease.
func (l *Lease) take(ctx context.Context, r *Repository, p *RestorePoint) error {
	inner, end := context.WithCancel(context.WithoutCancel(ctx)) // The lease outlives an interrupt, and Release ends it.
	interrupt := context.AfterFunc(ctx, end)                     // But an interrupt ends the wait for it.
	s := &writer{purpose: "a reader"}
	var err error
	s.ctx, s.w, err = r.rep.NewDirectWriter(inner, repo.WriteSessionOptions{Purpose: "varve lease"})
	if err != nil {
		end()
		return fmt.Errorf("lease on restore point %s: %w", p.ID, err)
	}
	l.lease, err = s.takeLease(p)
	if err == nil && l.lease == nil {
		err = fmt.Errorf("restore point %s: %w", p.ID, ErrNotFound)
	}
	if !interrupt() {
		err = errors.Join(err, context.Cause(ctx), l.lease.release())
	}
	if err != nil {
		end()
		return errors.Join(err, s.w.Close(context.WithoutCancel(s.ctx)))
	}
	l.end = end
	return nil
}

// keep renews the lease when it is due. ticks says when to look.
func (l *Lease) keep(ticks <-chan time.Time) {
	defer close(l.ended)
	for told := false; ; {
		select {
		case <-l.lease.s.ctx.Done():
			return
		case <-ticks:
		}
		err := l.renew()
		if err == nil || !l.doubtful() {
			continue // What has failed is tried again, for days.
		}
		if !told {
			l.lost(fmt.Errorf("the lease on restore point %s has ended: %w", l.lease.point.ID, err))
			told = true
		}
		if errors.Is(err, ErrNotFound) {
			return
		}
	}
}

// age returns how long ago the lease was stored.
func (l *Lease) age() time.Duration { return l.lease.s.w.Time().Sub(l.lease.since) }

// doubtful says whether others may take the owner of the lease for dead.
func (l *Lease) doubtful() bool { return l.age() >= leaseLife-leaseDoubt }

func (l *Lease) renew() error {
	if l.age() < leaseRenewal {
		return nil
	}
	if !l.doubtful() {
		return l.lease.renew()
	}
	if err := l.lease.s.w.Refresh(l.lease.s.ctx); err != nil {
		return fmt.Errorf("look for what is new: %w", err)
	}
	// This process was stopped for long, or the machine slept. What the lease kept may have been freed, so another lease is
	// possible only if the restore point still exists. A lease that refers to what is gone would make every garbage collection
	// fail.
	next, err := l.lease.s.takeLease(l.lease.point)
	if err != nil {
		return err
	}
	if next == nil {
		return fmt.Errorf("restore point %s: %w", l.lease.point.ID, ErrNotFound)
	}
	l.lease = next
	return nil
}

// Release ends the lease.
func (l *Lease) Release() error {
	l.end()
	<-l.ended
	err := l.lease.release()
	if err := errors.Join(err, l.lease.s.w.Close(context.WithoutCancel(l.lease.s.ctx))); err != nil {
		return fmt.Errorf("lease on restore point %s: %w", l.lease.point.ID, err)
	}
	return nil
}
