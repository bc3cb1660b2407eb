package repository

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"

	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/internal/repository/storage"
	"github.com/varvebackup/varve/test/verdict"
)

// Maintenance and verification at any step of a deletion neither take the restore point for lost, nor store the record again.
func TestRecords_takeNoDeletionForALoss(t *testing.T) {
	t.Parallel()
	c := newCrashed(t)
	r, other := c.open(t), c.site.opened(t, c.site.connect(t, "other", cached))
	ids := []string{c.ids[2000], c.ids[3000]}
	looking, steps := false, 0
	c.site.changed = func(string, blob.ID) {
		if looking {
			return
		}
		looking = true
		defer func() { looking = false }()
		steps++
		if err := other.Maintain(t.Context(), MaintenanceOptions{Mode: QuickMaintenance}); err != nil {
			t.Errorf("maintenance at step %d: %v", steps, err)
		}
		if report, err := other.Verify(t.Context(), VerifyOptions{}); err != nil || report.Damaged() {
			verdict.JudgeErrorf(t, err == nil, "verify at step %d: %+v, %v", steps, report, err)
		}
	}
	if err := r.Delete(t.Context(), ids...); err != nil {
		t.Fatal(err)
	}
	c.site.changed = nil
	if steps < 8 {
		t.Errorf("%d steps", steps)
	}
	for _, prefix := range []string{storage.RecordPrefix, storage.DeletingPrefix} {
		if got := c.named(t, r, prefix); len(got) > 0 {
			t.Errorf("%s are left", got)
		}
	}
}

// A deletion that never ended keeps a record from being stored for a day.
func TestRecords_forgetADeletionThatNeverEnded(t *testing.T) {
	t.Parallel()
	c := newCrashed(t)
	r := c.open(t)
	id := c.ids[2000]
	err := r.conn.Change(t.Context(), "test", func(ctx context.Context, w repo.DirectRepositoryWriter) error {
		return errors.Join(engine.AnnounceDeletion(ctx, w, []string{id}), engine.RemoveRecords(ctx, w, []string{id}))
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		pass              time.Duration
		records, deleting int
	}{{0, 1, 1}, {engine.DeletionLife - time.Hour, 1, 1}, {2 * time.Hour, 2, 0}} {
		c.site.move(step.pass)
		if err := r.Maintain(t.Context(), MaintenanceOptions{Mode: QuickMaintenance}); err != nil {
			t.Fatal(err)
		}
		records, deleting := c.named(t, r, storage.RecordPrefix), c.named(t, r, storage.DeletingPrefix)
		if len(records) != step.records || len(deleting) != step.deleting {
			t.Errorf("%s later: records %s, deletions %s", step.pass, records, deleting)
		}
	}
	c.check(t, r)
}

// named returns the restore points whose IDs follow prefix in the names of blobs.
func (c *crashed) named(t *testing.T, r *Repository, prefix string) (out []string) {
	t.Helper()
	blobs, err := storage.ListBlobs(t.Context(), r.conn.Kopia.BlobReader(), blob.ID(prefix))
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range blobs {
		out = append(out, strings.TrimPrefix(string(b.BlobID), prefix))
	}
	return out
}
