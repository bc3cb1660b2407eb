package repository

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kopia/kopia/repo"
)

// keepTimeout bounds how long a backup that was cancelled, or that has failed, stores what it has: somebody waits for its end.
const keepTimeout = 30 * time.Second

// Backup makes a restore point: a complete one, or none and an error. A disk that cannot follow its parent is read as a whole,
// and its FullReason says why.
func (r *Repository) Backup(ctx context.Context, q Request) (*RestorePoint, error) {
	q = q.withDefaults()
	if err := q.validate(); err != nil {
		return nil, err
	}
	if q.Time.IsZero() {
		q.Time = r.rep.Time()
	}
	if err := r.writable(ctx); err != nil {
		return nil, fmt.Errorf("back up %s: %w", q.Source, err)
	}
	parent, err := r.findParent(ctx, &q)
	if err != nil {
		return nil, err
	}
	s, err := r.newSession(ctx, &q)
	if err != nil {
		return nil, err
	}
	point, err := s.run(parent)
	if err := errors.Join(err, s.close()); err != nil {
		return nil, fmt.Errorf("back up %s: %w", q.Source, err)
	}
	return point, nil
}

// writer is a kopia writer of one's own.
type writer struct {
	ctx context.Context //nolint:containedctx // kopia's writer belongs to a context of its own
	w   repo.DirectRepositoryWriter
	// purpose is told to who looks at what was written.
	purpose string
}

// session is one backup.
type session struct {
	writer
	r        *Repository
	q        *Request
	progress *progress
	lease    *lease
}

func (r *Repository) newSession(ctx context.Context, q *Request) (*session, error) {
	s := &session{r: r, q: q, progress: newProgress(q)}
	ctx, w, err := r.rep.NewDirectWriter(ctx, repo.WriteSessionOptions{Purpose: "varve backup", OnUpload: s.progress.uploaded})
	if err != nil {
		return nil, fmt.Errorf("begin to write: %w", err)
	}
	s.writer = writer{ctx: ctx, w: w, purpose: "a backup"}
	return s, nil
}

func (s *session) close() error {
	return errors.Join(s.lease.release(), s.w.Close(s.ctx), s.r.failed())
}

func (s *session) run(parent *RestorePoint) (*RestorePoint, error) {
	if parent != nil {
		var err error
		if s.lease, err = s.takeLease(parent); err != nil {
			return nil, err
		}
		if s.lease == nil {
			parent = nil // It was deleted in between.
		}
	}
	stop := s.checkpoint()
	disks, err := s.disks(parent)
	if err := errors.Join(err, stop()); err != nil {
		s.keep()
		return nil, err
	}
	reached("data put")
	// Data and its index first: what the manifest will name is there before it.
	if err := s.w.Flush(s.ctx); err != nil {
		s.keep()
		return nil, fmt.Errorf("store the last data: %w", err)
	}
	reached("data stored")
	return s.publish(&RestorePoint{Source: s.q.Source, Time: s.q.Time.UTC(), Disks: disks})
}

// keep makes what was uploaded findable, as a checkpoint does, so that the next backup does not upload it again. It is called while no manifest
// of a restore point was handed to kopia: the flush would store that, too.
func (s *session) keep() {
	if s.lease != nil {
		return // Its end is a flush, too.
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), keepTimeout)
	defer cancel()
	// What ended the backup may end this. It then costs an upload, and nothing else.
	_ = s.w.Flush(ctx)
}

func (s *session) disks(parent *RestorePoint) ([]Disk, error) {
	var out []Disk
	for i := range s.q.Disks {
		d, err := s.disk(&s.q.Disks[i], parent)
		if err != nil {
			return nil, fmt.Errorf("disk %s: %w", s.q.Disks[i].Name, err)
		}
		out = append(out, *d)
	}
	return out, nil
}
