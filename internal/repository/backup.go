package repository

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/snapshot"
)

// keepTimeout bounds how long a cancelled or failed backup may take to store what it has, because somebody waits for its end.
const keepTimeout = 30 * time.Second

// Backup makes a restore point: either a complete one, or none and an error. If the storage does not answer at the very end, the
// error is ErrUnknown, and the restore point may exist. A disk that cannot follow its parent is read as a whole, and its
// FullReason says why.
func (r *Repository) Backup(ctx context.Context, q Request) (*RestorePoint, error) {
	q = q.withDefaults()
	if err := q.validate(); err != nil {
		return nil, err
	}
	if q.Time.IsZero() {
		q.Time = r.rep.Time()
	}
	if err := r.writableNow(ctx); err != nil {
		return nil, fmt.Errorf("back up %s: %w", q.Source, err)
	}
	if q.ID != "" {
		if p, err := r.published(ctx, &q); p != nil || err != nil {
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
	if end := h.end(); !end.Before(q.Time) {
		s.after = end.UTC()
	}
	s.doubts, s.namesakes = doubts, map[string][]*Disk{}
	for i := range q.Disks {
		s.namesakes[q.Disks[i].Name] = h.namesakes(&q.Disks[i])
	}
	point, err := s.run(parent)
	if closed := s.close(); point == nil {
		err = errors.Join(err, closed)
	}
	if err != nil {
		return nil, fmt.Errorf("back up %s: %w", q.Source, err)
	}
	return point, nil
}

// published returns the restore point with the requested ID, or nil if there is none.
func (r *Repository) published(ctx context.Context, q *Request) (*RestorePoint, error) {
	p, err := r.Get(ctx, q.ID)
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if p.Source != q.Source {
		return nil, fmt.Errorf("%w: restore point %s is of %s and not of %s", ErrConflict, q.ID, p.Source, q.Source)
	}
	return p, nil
}

// writer is a kopia writer that serves a single session or lease.
type writer struct {
	ctx context.Context //nolint:containedctx // kopia's writer belongs to a context of its own
	w   repo.DirectRepositoryWriter
	// purpose is shown to whoever looks at what was written.
	purpose string
}

func (s *session) run(parent *RestorePoint) (*RestorePoint, error) {
	parent, err := s.begin(parent)
	if err != nil {
		s.keep()
		return nil, err
	}
	stop := s.checkpoint()
	writers, err := s.disks(parent)
	err = errors.Join(err, stop())
	var p *RestorePoint
	var root *snapshot.DirEntry
	if err == nil {
		reached("data put")
		p, root, err = s.prepare(writers)
	}
	if err != nil {
		s.keep()
		return nil, s.cause(err)
	}
	return s.publish(p, root)
}

// prepare makes everything of the restore point durable except what makes it visible. Data and its index come first, so that what
// the manifest will name exists before the manifest does. If this machine has slept since the session manifest was stored,
// prepare checks all of that again.
func (s *session) prepare(writers []*diskWriter) (*RestorePoint, *snapshot.DirEntry, error) {
	for range settleAttempts {
		if err := s.settle(writers); err != nil {
			return nil, nil, err
		}
		reached("data stored")
		p := &RestorePoint{ID: s.id, Source: s.q.Source, Time: s.q.Time.UTC(), After: s.after}
		for _, w := range writers {
			p.Disks = append(p.Disks, *w.done)
		}
		if s.q.settled != nil {
			s.q.settled()
		}
		root, err := s.directory(p)
		if err != nil {
			return nil, nil, fmt.Errorf("store the restore point's directory: %w", err)
		}
		if !s.longAgo(s.stored, sessionMargin) {
			return p, root, s.r.notReplaced(s.ctx)
		}
	}
	return nil, nil, fmt.Errorf("%w: hours passed between the last data and the restore point, again and again", ErrConflict)
}

// settleAttempts is how often missing data is stored again. Data only goes missing while this machine sleeps for hours.
const settleAttempts = 5

// settle stores a session manifest that names all disks, and stores again what was lost before a manifest named it.
func (s *session) settle(writers []*diskWriter) error {
	for range settleAttempts {
		if err := s.store(s.ctx, sessionRunning); err != nil {
			return fmt.Errorf("store the last data: %w", err)
		}
		if !slices.ContainsFunc(writers, func(w *diskWriter) bool { return s.work.isBroken(w.work) }) {
			return nil
		}
		if err := s.storeAgain(writers); err != nil {
			return err
		}
	}
	return fmt.Errorf("%w: what was stored has gone again and again", ErrConflict)
}

// storeAgain stores again what is gone. That may take as long as the backup did, so it stores session manifests meanwhile.
func (s *session) storeAgain(writers []*diskWriter) error {
	stop := s.checkpoint()
	for _, w := range writers {
		if err := w.storeAgain(); err != nil {
			return errors.Join(fmt.Errorf("disk %s: %w", w.source.Name, err), stop())
		}
	}
	return stop()
}

func (s *session) disks(parent *RestorePoint) ([]*diskWriter, error) {
	var out []*diskWriter
	for i := range s.q.Disks {
		w, err := s.disk(&s.q.Disks[i], parent)
		if err != nil {
			return nil, fmt.Errorf("disk %s: %w", s.q.Disks[i].Name, err)
		}
		out = append(out, w)
	}
	return out, nil
}
