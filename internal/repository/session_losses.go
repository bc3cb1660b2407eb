package repository

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kopia/kopia/repo/object"
	"golang.org/x/sync/errgroup"

	"github.com/varvebackup/varve/internal/errclass"
)

// lossesAge is how old the comparison of the index with the packs may be when a restore point is published. A short backup compares
// once, when it begins.
const lossesAge = 15 * time.Minute

// findLosses compares the index with the packs. From now on, what is lost is not taken for stored. The index must have been read.
func (s *session) findLosses(ctx context.Context) error {
	began := s.w.Time()
	l, err := s.r.conn.FindLosses(ctx)
	if err != nil {
		return fmt.Errorf("look for lost blobs: %w", err)
	}
	s.w.SetLosses(l)
	s.lookedForLosses = began
	return nil
}

// findLatestLosses compares again, if that was done too long ago for a restore point to be published.
func (s *session) findLatestLosses(ctx context.Context) error {
	if !s.longAgo(s.lookedForLosses, lossesAge) {
		return nil
	}
	if err := s.w.Refresh(ctx); err != nil {
		return fmt.Errorf("look for lost blobs: %w", err)
	}
	return s.findLosses(ctx)
}

// checkDisks looks for what has been lost since the session began, in everything that the restore point is about to refer to. It notes
// as broken what has to be stored again.
func (s *session) checkDisks(ctx context.Context, writers []*diskWriter) error {
	if err := s.findLatestLosses(ctx); err != nil || !s.w.Unchecked() {
		return err
	}
	s.w.Checked()
	c := &contentChecker{s}
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(s.q.Workers)
	for _, w := range writers {
		group.Go(func() error { return c.checkList(inner, w.work, w.done.Object) })
		for _, e := range w.list {
			group.Go(func() error { return c.checkTable(inner, w.work, e) })
		}
	}
	if err := group.Wait(); err != nil {
		return s.explainLoss(err)
	}
	return s.w.Flush(ctx)
}

// explainLoss adds to an error that means damage which blobs are lost.
func (s *session) explainLoss(err error) error {
	if l := s.w.Losses(); l.Any() && errors.Is(err, errclass.Corrupt) {
		return fmt.Errorf("%s: %w", l.Describe(), err)
	}
	return err
}

// isLost says whether a block that was taken for stored is lost.
func (s *session) isLost(block object.ID) bool {
	id, _, ok := block.ContentID()
	if !ok {
		return false
	}
	lost, err := s.w.IsLost(s.ctx, id)
	return err == nil && lost // A content that no index has fails where it is looked up.
}
