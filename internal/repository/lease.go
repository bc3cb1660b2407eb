package repository

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kopia/kopia/fs"
	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/manifest"
	"github.com/kopia/kopia/snapshot"
)

const (
	// leaseReason marks a kopia snapshot as a lease. kopia counts it as incomplete, and keeps what it refers to.
	leaseReason = "checkpoint"
	tagLease    = "tag:varve-lease"
	// leaseLife is how long a lease counts after its owner was last heard of. Garbage collection takes contents that are a day
	// old.
	leaseLife = 72 * time.Hour
	// leaseRenewal is the age at which an owner that still works stores its lease again.
	leaseRenewal = leaseLife / 6
	// releaseTimeout bounds how long ending a lease may take. Its owner may have failed because the storage does not answer.
	releaseTimeout = time.Minute
)

// lease protects the content of a restore point that is being read from garbage collection, even if the restore point is deleted.
type lease struct {
	s     *writer
	point *RestorePoint
	id    manifest.ID
	root  *snapshot.DirEntry
	since time.Time
}

// takeLease takes a lease on a restore point, or returns nil if the restore point is gone. The order makes this safe: a garbage
// collection that does not see the lease began before the lease was stored. It then sees the restore point, because takeLease
// looks for the restore point afterwards.
func (s *writer) takeLease(parent *RestorePoint) (*lease, error) {
	root, err := s.root(parent)
	if root == nil {
		return nil, err
	}
	l := &lease{s: s, point: parent, root: root}
	if err := l.store(); err != nil {
		return nil, fmt.Errorf("lease on restore point %s: %w", parent.ID, err)
	}
	if err := s.w.Refresh(s.ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("look for restore point %s again: %w", parent.ID, err), l.release())
	}
	if root, err := s.root(parent); root == nil {
		return nil, errors.Join(err, l.release())
	}
	return l, nil
}

// root returns the parent's directory, or nil if the parent was deleted.
func (s *writer) root(parent *RestorePoint) (*snapshot.DirEntry, error) {
	entries, err := find(s.ctx, s.w, nil, parent.ID)
	if err != nil {
		return nil, fmt.Errorf("restore point %s: %w", parent.ID, err)
	}
	found, err := group(entries)
	if len(found) == 0 {
		return nil, err
	}
	return found[0].manifest.RootEntry, nil
}

// store makes the lease durable, in place of its earlier version.
func (l *lease) store() error {
	now := l.s.w.Time()
	id, err := snapshot.SaveSnapshot(l.s.ctx, l.s.w, &snapshot.Manifest{
		Source: l.point.Source.info(), Description: "lease of " + l.s.purpose, IncompleteReason: leaseReason,
		StartTime: fs.UTCTimestampFromTime(now), EndTime: fs.UTCTimestampFromTime(now),
		RootEntry: l.root, Tags: map[string]string{tagLease: "1"}, Pins: []string{kopiaPin},
	})
	if err != nil {
		return err
	}
	if l.id != "" {
		if err := removeManifest(l.s.ctx, l.s.w, l.id); err != nil {
			return err
		}
	}
	l.id, l.since = id, now
	reached("lease put")
	if err := l.s.w.Flush(l.s.ctx); err != nil {
		return err
	}
	reached("lease stored")
	return nil
}

// renew keeps a lease from becoming stale.
func (l *lease) renew() error {
	if l == nil || l.s.w.Time().Sub(l.since) < leaseRenewal {
		return nil
	}
	return l.store()
}

// release ends the lease. It may be called twice, and on nil. Its own flush makes that durable, or else the writer's next one
// does.
func (l *lease) release() error {
	if l == nil || l.id == "" {
		return nil
	}
	id := l.id
	l.id = ""
	ctx, cancel := context.WithTimeout(context.WithoutCancel(l.s.ctx), releaseTimeout)
	defer cancel()
	if err := removeManifest(ctx, l.s.w, id); err != nil {
		return fmt.Errorf("end the lease: %w", err)
	}
	reached("lease's end put")
	if err := l.s.w.Flush(ctx); err != nil {
		return fmt.Errorf("end the lease: %w", err)
	}
	reached("lease's end stored")
	return nil
}

// dropStaleLeases removes the leases and session manifests of processes that died. Only maintenance calls it, once it knows that
// this machine's clock is right: a clock that is ahead would take everybody for dead.
func dropStaleLeases(ctx context.Context, w repo.DirectRepositoryWriter) error {
	err := eachSnapshot(ctx, w, nil, func(m *snapshot.Manifest) error {
		life := leaseLifeOf(m)
		if life == 0 || w.Time().Sub(m.EndTime.ToTime()) < life {
			return nil
		}
		if err := removeManifest(ctx, w, m.ID); err != nil {
			return err
		}
		reached("stale lease's end put")
		return nil
	})
	if err != nil {
		return fmt.Errorf("drop leases: %w", err)
	}
	return nil
}

// leaseLifeOf returns how long a snapshot counts after its end time; 0 if it is neither a lease nor a session manifest.
func leaseLifeOf(m *snapshot.Manifest) time.Duration {
	switch {
	case m.Tags[tagSession] != "":
		return sessionLife
	case m.Tags[tagLease] != "":
		return leaseLife
	}
	return 0
}
