package repository

import (
	"context"
	"fmt"

	"github.com/kopia/kopia/repo/object"
	"golang.org/x/sync/errgroup"
)

// verifyClones checks that every block and table of a disk is in the repository and not marked as deleted. What was taken over from
// the parent was not written by this session, so nothing else would notice.
func (s *session) verifyClones(g geometry, list []object.IndirectObjectEntry) error {
	group, ctx := errgroup.WithContext(s.ctx)
	group.SetLimit(s.q.Workers)
	seen := map[object.ID]bool{}
	for i, e := range list {
		if seen[e.Object] {
			continue
		}
		seen[e.Object] = true
		group.Go(func() error { return verifyRegion(ctx, s.w.ContentReader(), g, i, e.Object) })
	}
	if err := group.Wait(); err != nil {
		return &parentError{err}
	}
	return nil
}

func verifyRegion(ctx context.Context, r contentReader, g geometry, i int, id object.ID) error {
	if inner, ok := id.IndexObjectID(); ok {
		if err := alive(ctx, r, inner); err != nil {
			return err
		}
	}
	entries, err := readBlocks(ctx, r, g, i, id)
	if err != nil {
		return err
	}
	last := object.EmptyID
	for _, e := range entries {
		if e.Object == last {
			continue
		}
		last = e.Object
		if err := alive(ctx, r, e.Object); err != nil {
			return err
		}
	}
	return nil
}

// alive checks that a direct object's content is there to stay.
func alive(ctx context.Context, r contentReader, id object.ID) error {
	cid, _, ok := id.ContentID()
	if !ok {
		return fmt.Errorf("%w: %s is not a direct object", ErrCorrupt, id)
	}
	info, err := r.ContentInfo(ctx, cid)
	if err != nil {
		return readError(fmt.Sprintf("look up %s", id), err)
	}
	if info.Deleted {
		return fmt.Errorf("%w: %s is marked as deleted", ErrCorrupt, id)
	}
	return nil
}
