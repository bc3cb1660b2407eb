package repository

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/kopia/kopia/snapshot"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/internal/repository/storage"
)

// Backup makes a restore point: either a complete one, or none and an error. If the storage does not answer at the very end, the
// error is errclass.Unknown, and the restore point may exist. A disk that cannot follow its parent is read as a whole, and its
// FullReason says why.
func (r *Repository) Backup(ctx context.Context, q Request) (*RestorePoint, error) {
	q = q.withDefaults()
	if err := q.validate(); err != nil {
		return nil, err
	}
	if q.Time.IsZero() {
		q.Time = r.conn.Kopia.Time()
	}
	if err := r.conn.RefreshWritable(ctx); err != nil {
		return nil, fmt.Errorf("back up %s: %w", q.Source, err)
	}
	if q.ID != "" {
		if p, err := r.findPublished(ctx, &q); p != nil || err != nil {
			return p, err
		}
	}
	h, err := r.loadHistory(ctx, &q.Source)
	if err != nil {
		return nil, fmt.Errorf("read the history of %s: %w", q.Source, err)
	}
	parent, doubts, err := h.findParent(&q)
	if err != nil {
		return nil, err
	}
	s, err := r.newSession(ctx, &q)
	if err != nil {
		return nil, err
	}
	defer s.progress.reports.Stop()
	if end := h.latestTime(); !end.Before(q.Time) {
		s.after = end.UTC()
	}
	s.doubts, s.namesakes = doubts, map[string][]*Disk{}
	for i := range q.Disks {
		s.namesakes[q.Disks[i].Name] = h.findNamesakes(&q.Disks[i])
	}
	point, err := s.makePoint(parent)
	if closed := s.closeWriter(); point == nil {
		err = errors.Join(err, closed)
	}
	if err != nil {
		return nil, fmt.Errorf("back up %s: %w", q.Source, err)
	}
	storage.KeepReserve(r.conn.Kopia.BlobReader())
	return point, nil
}

// findPublished returns the restore point with the requested ID, or nil if there is none.
func (r *Repository) findPublished(ctx context.Context, q *Request) (*RestorePoint, error) {
	p, err := r.Get(ctx, q.ID)
	if errors.Is(err, errclass.NotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if p.Source != q.Source {
		return nil, fmt.Errorf("%w: restore point %s is of %s and not of %s", errclass.Conflict, q.ID, p.Source, q.Source)
	}
	return p, nil
}

// makePoint stores the disks and publishes the restore point. If it fails before that, what was uploaded is kept.
func (s *session) makePoint(parent *RestorePoint) (*RestorePoint, error) {
	parent, err := s.protectParent(parent)
	if err != nil {
		s.keepUploads(err)
		return nil, err
	}
	stop := s.flushPeriodically()
	writers, err := s.writeDisks(parent)
	if err == nil && s.q.Check != nil {
		err = s.q.Check(s.ctx)
	}
	err = errors.Join(err, stop())
	var p *RestorePoint
	var root *snapshot.DirEntry
	if err == nil {
		engine.Reached("data put")
		p, root, err = s.preparePoint(writers)
	}
	if err != nil {
		s.keepUploads(err)
		return nil, s.withCause(err)
	}
	return s.publishPoint(p, root)
}

// preparePoint makes everything of the restore point durable except what makes it visible. Data and its index come first, so that what
// the manifest will name exists before the manifest does. If this machine has slept since the session manifest was stored,
// preparePoint checks all of that again.
func (s *session) preparePoint(writers []*diskWriter) (*RestorePoint, *snapshot.DirEntry, error) {
	for range settleAttempts {
		if err := s.storeEverything(writers); err != nil {
			return nil, nil, err
		}
		engine.Reached("data stored")
		p := &RestorePoint{ID: s.id, Source: s.q.Source, Time: s.q.Time.UTC(), After: s.after, Group: s.q.Group, Labels: s.q.Labels}
		for _, w := range writers {
			p.Disks = append(p.Disks, *w.done)
		}
		if s.q.settled != nil {
			s.q.settled()
		}
		root, err := s.writeDirectory(p)
		if err != nil {
			return nil, nil, fmt.Errorf("store the restore point's directory: %w", err)
		}
		if !s.longAgo(s.stored, sessionMargin) {
			return p, root, s.r.conn.CheckNotReplaced(s.ctx)
		}
	}
	return nil, nil, fmt.Errorf("%w: hours passed between the last data and the restore point, again and again", errclass.Conflict)
}

// settleAttempts is how often missing data is stored again. Data only goes missing while this machine sleeps for hours.
const settleAttempts = 5

// storeEverything stores a session manifest that names all disks, and stores again what was lost before a manifest named it.
func (s *session) storeEverything(writers []*diskWriter) error {
	for range settleAttempts {
		if err := s.storeManifest(s.ctx, engine.SessionRunning); err != nil {
			return fmt.Errorf("store the last data: %w", err)
		}
		if err := s.checkDisks(s.ctx, writers); err != nil {
			return err
		}
		if !slices.ContainsFunc(writers, func(w *diskWriter) bool { return s.work.isBroken(w.work) }) {
			return nil
		}
		if err := s.storeMissing(writers); err != nil {
			return err
		}
	}
	return fmt.Errorf("%w: what was stored has gone again and again", errclass.Conflict)
}

// storeMissing stores again what is gone. That may take as long as the backup did, so it stores session manifests meanwhile.
func (s *session) storeMissing(writers []*diskWriter) error {
	stop := s.flushPeriodically()
	for _, w := range writers {
		if err := w.storeMissing(); err != nil {
			return errors.Join(fmt.Errorf("disk %s: %w", w.source.Name, err), stop())
		}
	}
	return stop()
}

func (s *session) writeDisks(parent *RestorePoint) ([]*diskWriter, error) {
	var out []*diskWriter
	for i := range s.q.Disks {
		w, err := s.writeDisk(&s.q.Disks[i], parent)
		if err != nil {
			return nil, fmt.Errorf("disk %s: %w", s.q.Disks[i].Name, err)
		}
		out = append(out, w)
	}
	return out, nil
}
