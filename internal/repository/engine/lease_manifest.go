package engine

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
	// IncompleteReason marks a kopia snapshot as a lease. kopia counts it as incomplete, and keeps what it refers to.
	IncompleteReason = "checkpoint"
	// TagLease, with the value 1, marks it as a lease and not as a session manifest.
	TagLease = "tag:varve-lease"
	// LeaseLife is how long a lease counts after its owner was last heard of. Garbage collection takes contents that are a day
	// old.
	LeaseLife = 72 * time.Hour
	// LeaseRenewal is the age at which an owner that still works stores its lease again.
	LeaseRenewal = LeaseLife / 6
	// releaseTimeout bounds how long ending a lease may take. Its owner may have failed because the storage does not answer.
	releaseTimeout = time.Minute

	// OwnPin keeps `kopia snapshot expire` from deleting Varve's snapshots: restore points, because Varve has its own
	// retention, and session manifests and leases, because kopia keeps only a few incomplete snapshots. It is not a user's pin.
	OwnPin = "varve"
)

// leaseManifest protects the content of a restore point that is being read from garbage collection, even if the restore point is
// deleted.
type leaseManifest struct {
	writer *leaseWriter
	point  *RestorePoint
	id     manifest.ID
	root   *snapshot.DirEntry
	since  time.Time
}

// takeLease takes a lease on a restore point, or returns nil if the restore point is gone. The order makes this safe: a garbage
// collection that does not see the lease began before the lease was stored. It then sees the restore point, because takeLease
// looks for the restore point afterwards.
func (s *leaseWriter) takeLease(parent *RestorePoint) (*leaseManifest, error) {
	root, err := PointRoot(s.ctx, s.w, parent)
	if root == nil {
		return nil, err
	}
	l := &leaseManifest{writer: s, point: parent, root: root}
	if err := l.storeLease(); err != nil {
		return nil, fmt.Errorf("lease on restore point %s: %w", parent.ID, err)
	}
	if err := s.w.Refresh(s.ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("look for restore point %s again: %w", parent.ID, err), l.endLease())
	}
	if root, err := PointRoot(s.ctx, s.w, parent); root == nil {
		return nil, errors.Join(err, l.endLease())
	}
	return l, nil
}

// storeLease makes the lease durable, in place of its earlier version.
func (l *leaseManifest) storeLease() error {
	now := l.writer.w.Time()
	id, err := snapshot.SaveSnapshot(l.writer.ctx, l.writer.w, &snapshot.Manifest{
		Source: l.point.Source.KopiaSource(), Description: "lease of " + l.writer.purpose, IncompleteReason: IncompleteReason,
		StartTime: fs.UTCTimestampFromTime(now), EndTime: fs.UTCTimestampFromTime(now),
		RootEntry: l.root, Tags: map[string]string{TagLease: "1"}, Pins: []string{OwnPin},
	})
	if err != nil {
		return err
	}
	if l.id != "" {
		if err := RemoveManifest(l.writer.ctx, l.writer.w, l.id); err != nil {
			return err
		}
	}
	l.id, l.since = id, now
	Reached("lease put")
	if err := l.writer.w.Flush(l.writer.ctx); err != nil {
		return err
	}
	Reached("lease stored")
	return nil
}

// renewIfDue keeps a lease from becoming stale.
func (l *leaseManifest) renewIfDue() error {
	if l == nil || l.writer.w.Time().Sub(l.since) < LeaseRenewal {
		return nil
	}
	return l.storeLease()
}

// endLease ends the lease. It may be called twice, and on nil. Its own flush makes that durable, or else the writer's next one
// does.
func (l *leaseManifest) endLease() error {
	if l == nil || l.id == "" {
		return nil
	}
	id := l.id
	l.id = ""
	ctx, cancel := context.WithTimeout(context.WithoutCancel(l.writer.ctx), releaseTimeout)
	defer cancel()
	if err := RemoveManifest(ctx, l.writer.w, id); err != nil {
		return fmt.Errorf("end the lease: %w", err)
	}
	Reached("lease's end put")
	if err := l.writer.w.Flush(ctx); err != nil {
		return fmt.Errorf("end the lease: %w", err)
	}
	Reached("lease's end stored")
	return nil
}

// leaseWriter is a kopia writer that serves a single lease.
type leaseWriter struct {
	ctx context.Context //nolint:containedctx // kopia's writer belongs to a context of its own
	w   repo.DirectRepositoryWriter
	// purpose is shown to whoever looks at what was written.
	purpose string
}
