package repository

import (
	"context"
	"errors"
	"fmt"

	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/object"
	"golang.org/x/sync/errgroup"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/internal/repository/table"
)

// contentChecker checks whether contents are there to stay, according to the index and the storage as they are now.
type contentChecker struct{ s *session }

// checkFinishedAgain checks everything in f that no session manifest has named in time: garbage collection may have marked it as
// deleted, and kopia may have forgotten it. It takes marks back, and notes as broken what is gone.
func (s *session) checkFinishedAgain(ctx context.Context, f finishedWork) error {
	if err := s.w.Flush(ctx); err != nil {
		return err
	}
	if err := s.w.Refresh(ctx); err != nil {
		return fmt.Errorf("look at what is stored again: %w", err)
	}
	// Exclusive maintenance may have taken this backup for dead. It frees at once what it sees no reference to.
	if err := engine.CheckNoExclusiveMaintenance(ctx, s.w); err != nil {
		return err
	}
	if err := s.findLosses(ctx); err != nil {
		return err
	}
	c := &contentChecker{s}
	if s.tree != nil {
		if err := c.checkTree(ctx, s.tree.entries()); err != nil {
			return err
		}
	}
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(s.q.Workers)
	for _, d := range f.disks {
		for i, blocks := range d.blocks {
			group.Go(func() error { return c.checkRegion(inner, d.work, i, blocks) })
		}
		for _, e := range d.regions[min(d.confirmed, len(d.regions)):] {
			group.Go(func() error { return c.checkTable(inner, d.work, e) })
		}
		if d.list != nil {
			group.Go(func() error { return c.checkList(inner, d.work, d.list.Object) })
		}
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("look at what is stored again: %w", err)
	}
	return s.w.Flush(ctx)
}

// checkTable checks a finished region, its table first.
func (c *contentChecker) checkTable(ctx context.Context, d *diskWork, e object.IndirectObjectEntry) error {
	i, _ := d.geometry.Locate(e.Start)
	inner, ok := e.Object.IndexObjectID()
	if !ok {
		return fmt.Errorf("%w: object %s is not a table", errclass.Corrupt, e.Object)
	}
	there, err := c.checkObject(ctx, inner)
	if err != nil {
		return err
	}
	if !there {
		c.s.work.breakRegion(d, i)
		return nil
	}
	blocks, err := table.ReadRegion(ctx, c.s.w.ContentReader(), d.geometry, i, e.Object)
	if err != nil {
		return err
	}
	return c.checkRegion(ctx, d, i, blocks)
}

// checkRegion checks blocks of region i, and marks the region as broken if one is gone.
func (c *contentChecker) checkRegion(ctx context.Context, d *diskWork, i int, blocks []object.IndirectObjectEntry) error {
	whole, last := true, object.EmptyID
	for _, e := range blocks {
		if e.Object == last {
			continue
		}
		last = e.Object
		there, err := c.checkObject(ctx, e.Object)
		if err != nil {
			return err
		}
		whole = whole && there
	}
	if !whole {
		c.s.work.breakRegion(d, i)
	}
	return nil
}

// checkList checks the contents of a disk's list of regions, but not the regions.
func (c *contentChecker) checkList(ctx context.Context, d *diskWork, id object.ID) error {
	inner, _ := id.IndexObjectID()
	parts, err := c.s.w.VerifyObject(ctx, inner)
	if table.IsMissing(err) {
		c.s.work.breakList(d)
		return nil
	}
	if err != nil {
		return err
	}
	for _, p := range parts {
		there, err := c.checkContent(ctx, p)
		if err != nil {
			return err
		}
		if !there {
			c.s.work.breakList(d)
		}
	}
	return nil
}

// checkObject says whether the content of a direct object is there to stay.
func (c *contentChecker) checkObject(ctx context.Context, id object.ID) (bool, error) {
	cid, _, ok := id.ContentID()
	if !ok {
		return false, fmt.Errorf("%w: %s is not a direct object", errclass.Corrupt, id)
	}
	return c.checkContent(ctx, cid)
}

func (c *contentChecker) checkContent(ctx context.Context, id content.ID) (bool, error) {
	m := c.s.w.ContentManager()
	info, err := m.ContentInfo(ctx, id)
	if errors.Is(err, content.ErrContentNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if c.s.w.Losses().Has(info) {
		return false, nil
	}
	if info.Deleted {
		return true, m.UndeleteContent(ctx, id)
	}
	return true, nil
}
