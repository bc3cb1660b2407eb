package repository

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/maintenance"
	"github.com/kopia/kopia/repo/manifest"
	"github.com/kopia/kopia/repo/object"
	"golang.org/x/sync/errgroup"
)

// clockSkew is how far the clocks of two machines may be apart. kopia refuses to maintain when a clock is 5 minutes off.
const clockSkew = 15 * time.Minute

// verifyClones checks what a disk took over from the restore point parentID. This session did not write it, so nothing else would
// notice that it is gone. Checking that the index has every table costs no request, because the index is in memory. The blocks of
// unchanged regions can be looked up only after their tables were read, with a request each. That is done only if one of the
// blocks may be gone: see clonesInDoubt.
func (s *session) verifyClones(g geometry, list []object.IndirectObjectEntry, parentID string) error {
	tables := map[object.ID]int{}
	for i, e := range list {
		if _, ok := tables[e.Object]; ok {
			continue
		}
		tables[e.Object] = i
		if err := tableAlive(s.ctx, s.w.ContentReader(), e.Object); err != nil {
			return &parentError{err}
		}
	}
	doubt, err := s.clonesInDoubt(parentID)
	if err != nil || !doubt {
		return err
	}
	group, ctx := errgroup.WithContext(s.ctx)
	group.SetLimit(s.q.Workers)
	for table, i := range tables {
		group.Go(func() error { return verifyRegion(ctx, s.w.ContentReader(), g, i, table) })
	}
	if err := group.Wait(); err != nil {
		return &parentError{err}
	}
	return nil
}

// clonesInDoubt says whether a block of the restore point parentID can be missing or marked as deleted. Two things can show that.
// One is a mark that nobody who saw the restore point can have made; the index, which is in memory, has the marks. The other is
// that the last collection failed, maybe because a content is missing.
func (s *session) clonesInDoubt(parentID string) (bool, error) {
	entries, err := find(s.ctx, s.w, nil, parentID)
	if err != nil {
		return false, fmt.Errorf("restore point %s: %w", parentID, err)
	}
	found, _ := group(entries)
	if len(found) != 1 {
		return true, nil // It was deleted while this backup ran.
	}
	schedule, err := maintenance.GetSchedule(s.ctx, s.w)
	if err != nil {
		return false, fmt.Errorf("read when garbage was collected: %w", err)
	}
	if lastCollectionFailed(schedule) {
		return true, nil
	}
	marks := newMarkHistory(found[0].manifest.StartTime.ToTime(), found[0].manifest.EndTime.ToTime(), schedule)
	return marks.anyUnexplained(s.ctx, s.w.ContentReader())
}

// markHistory distinguishes harmless deletion marks from those that a restore point's contents can have. A garbage collection
// that began after the restore point was published saw it, and marked none of its contents.
type markHistory struct {
	// begun and published are when the restore point was made, with a margin for clocks that differ.
	begun, published time.Time
	// seen is when the first collection that saw it began; zero if there was none.
	seen time.Time
	// rewrites have moved contents, which gives their marks a new time. They count only if no collection ran while the restore
	// point was made, because that collection's marks may be among them.
	rewrites []maintenance.RunInfo
}

func newMarkHistory(begun, published time.Time, schedule *maintenance.Schedule) *markHistory {
	if published.Before(begun) {
		begun = published
	}
	h := &markHistory{begun: begun.Add(-clockSkew), published: published.Add(clockSkew)}
	overlaps := false
	for _, run := range schedule.Runs[maintenance.TaskSnapshotGarbageCollection] {
		switch {
		case run.Start.After(h.published):
			if h.seen.IsZero() || run.Start.Before(h.seen) {
				h.seen = run.Start
			}
		case !run.End.Before(h.begun):
			overlaps = true
		}
	}
	if !overlaps {
		h.rewrites = slices.Concat(schedule.Runs[maintenance.TaskRewriteContentsQuick], schedule.Runs[maintenance.TaskRewriteContentsFull])
	}
	return h
}

// explains says whether a content that was marked at this time cannot belong to the restore point.
func (h *markHistory) explains(marked time.Time) bool {
	// The index stores whole seconds.
	if marked.Before(h.begun) || (!h.seen.IsZero() && !marked.Before(h.seen.Truncate(time.Second))) {
		return true
	}
	return slices.ContainsFunc(h.rewrites, func(run maintenance.RunInfo) bool {
		return !marked.Before(run.Start.Truncate(time.Second)) && !marked.After(run.End)
	})
}

// errUnexplained ends a search early.
var errUnexplained = errors.New("a mark of deletion that is not explained")

// anyUnexplained says whether the index has a mark that is not explained.
func (h *markHistory) anyUnexplained(ctx context.Context, r content.Reader) (bool, error) {
	err := r.IterateContents(ctx, content.IterateOptions{IncludeDeleted: true}, func(info content.Info) error {
		if info.Deleted && info.ContentID.Prefix() != manifest.ContentPrefix && !h.explains(info.Timestamp()) {
			return errUnexplained
		}
		return ctx.Err()
	})
	if errors.Is(err, errUnexplained) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for contents that are marked as deleted: %w", err)
	}
	return false, nil
}

func verifyRegion(ctx context.Context, r contentReader, g geometry, i int, id object.ID) error {
	entries, err := readBlocks(ctx, r, g, i, id)
	if err != nil {
		return err
	}
	blocks := make([]object.ID, len(entries))
	for j, e := range entries {
		blocks[j] = e.Object
	}
	return contentsAlive(ctx, r, blocks...)
}

// tableAlive checks that the index has the table of a region, and that it is not marked as deleted.
func tableAlive(ctx context.Context, r contentReader, id object.ID) error {
	inner, ok := id.IndexObjectID()
	if !ok {
		return fmt.Errorf("%w: object %s is not a table", ErrCorrupt, id)
	}
	return contentsAlive(ctx, r, inner)
}

// contentsAlive checks that the index has the contents of direct objects, and that they are not marked as deleted. It looks up a run of
// the same object, such as the zeroes of a sparse disk, once.
func contentsAlive(ctx context.Context, r contentReader, ids ...object.ID) error {
	last := object.EmptyID
	for _, id := range ids {
		if id == last {
			continue
		}
		last = id
		if err := contentAlive(ctx, r, id); err != nil {
			return err
		}
	}
	return nil
}

func contentAlive(ctx context.Context, r contentReader, id object.ID) error {
	if err := ctx.Err(); err != nil {
		return err
	}
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
