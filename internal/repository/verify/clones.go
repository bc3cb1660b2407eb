package verify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/maintenance"
	"github.com/kopia/kopia/repo/manifest"
	"github.com/kopia/kopia/repo/object"
	"golang.org/x/sync/errgroup"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/internal/repository/table"
)

// CheckTables checks that the index has all tables of a list of regions, and that none is marked as deleted. That costs no request,
// because the index is in memory.
func CheckTables(ctx context.Context, r table.ContentReader, list []object.IndirectObjectEntry) error {
	for _, i := range distinctRegions(list) {
		if err := checkTable(ctx, r, list[i].Object); err != nil {
			return err
		}
	}
	return nil
}

// CheckRegions reads the tables of a list of regions, and checks that the index has all blocks, and that none is marked as
// deleted. Each table costs a request.
func CheckRegions(ctx context.Context, r table.ContentReader, g table.Geometry, list []object.IndirectObjectEntry, workers int) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(workers)
	for _, i := range distinctRegions(list) {
		group.Go(func() error { return checkRegionBlocks(ctx, r, g, i, list[i].Object) })
	}
	return group.Wait()
}

// distinctRegions returns the regions that have different tables.
func distinctRegions(list []object.IndirectObjectEntry) (out []int) {
	seen := map[object.ID]bool{}
	for i, e := range list {
		if !seen[e.Object] {
			seen[e.Object] = true
			out = append(out, i)
		}
	}
	return out
}

// ClonesInDoubt says whether a block of the restore point parentID can be missing or marked as deleted. Two things can show that.
// One is a mark that nobody who saw the restore point can have made; the index, which is in memory, has the marks. The other is
// that the last collection failed, maybe because a content is missing.
func ClonesInDoubt(ctx context.Context, w repo.DirectRepositoryWriter, parentID string) (bool, error) {
	parent, err := engine.CurrentPoint(ctx, w, parentID)
	switch {
	case parent == nil && (err == nil || errors.Is(err, errclass.Corrupt)):
		return true, nil // It was deleted while this backup ran, or cannot be read any more.
	case err != nil && parent == nil:
		return false, err
	}
	schedule, err := maintenance.GetSchedule(ctx, w)
	if err != nil {
		return false, fmt.Errorf("read when garbage was collected, from blob kopia.maintenance: %w", err)
	}
	if lastCollectionFailed(schedule) {
		return true, nil
	}
	marks := newMarkHistory(parent.Manifest.StartTime.ToTime(), parent.Manifest.EndTime.ToTime(), schedule)
	return marks.hasUnexplainedMark(ctx, w.ContentReader())
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
	h := &markHistory{begun: begun.Add(-engine.ClockSkew), published: published.Add(engine.ClockSkew)}
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

// explainsMark says whether a content that was marked at this time cannot belong to the restore point.
func (h *markHistory) explainsMark(marked time.Time) bool {
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

// hasUnexplainedMark says whether the index has a mark that is not explained.
func (h *markHistory) hasUnexplainedMark(ctx context.Context, r content.Reader) (bool, error) {
	err := r.IterateContents(ctx, content.IterateOptions{IncludeDeleted: true}, func(info content.Info) error {
		if info.Deleted && info.ContentID.Prefix() != manifest.ContentPrefix && !h.explainsMark(info.Timestamp()) {
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

func checkRegionBlocks(ctx context.Context, r table.ContentReader, g table.Geometry, i int, id object.ID) error {
	entries, err := table.ReadRegion(ctx, r, g, i, id)
	if err != nil {
		return err
	}
	blocks := make([]object.ID, len(entries))
	for j, e := range entries {
		blocks[j] = e.Object
	}
	return CheckContents(ctx, r, blocks...)
}

// checkTable checks that the index has the table of a region, and that it is not marked as deleted.
func checkTable(ctx context.Context, r table.ContentReader, id object.ID) error {
	inner, ok := id.IndexObjectID()
	if !ok {
		return fmt.Errorf("%w: object %s is not a table", errclass.Corrupt, id)
	}
	return CheckContents(ctx, r, inner)
}

// CheckContents checks that the index has the contents of direct objects, and that they are not marked as deleted. It looks up a
// run of the same object, such as the zeroes of a sparse disk, once.
func CheckContents(ctx context.Context, r table.ContentReader, ids ...object.ID) error {
	last := object.EmptyID
	for _, id := range ids {
		if id == last {
			continue
		}
		last = id
		if err := checkContentMark(ctx, r, id); err != nil {
			return err
		}
	}
	return nil
}

func checkContentMark(ctx context.Context, r table.ContentReader, id object.ID) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	cid, _, ok := id.ContentID()
	if !ok {
		return fmt.Errorf("%w: %s is not a direct object", errclass.Corrupt, id)
	}
	info, err := r.ContentInfo(ctx, cid)
	if err != nil {
		return table.WrapReadError(fmt.Sprintf("look up %s", id), err)
	}
	if info.Deleted {
		return fmt.Errorf("%w: %s is marked as deleted", errclass.Corrupt, id)
	}
	return nil
}
