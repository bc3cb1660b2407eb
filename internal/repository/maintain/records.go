package maintain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"

	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/internal/repository/storage"
)

// completeRecords makes sure that every restore point has a record. If a restore point is lost, it fails with errclass.Corrupt,
// because nothing may be freed then.
func completeRecords(ctx context.Context, c *engine.Connection, w repo.DirectRepositoryWriter) error {
	lost, known, err := c.FindLost(ctx)
	if err := errors.Join(err, engine.LostError(lost)); err != nil {
		return err
	}
	records, err := c.RecordedPoints(ctx)
	if err != nil {
		return err
	}
	slices.Sort(records)
	// A deletion is announced before the record goes.
	going, err := runningDeletions(ctx, w)
	if err != nil {
		return err
	}
	for _, s := range known {
		if _, recorded := slices.BinarySearch(records, s.ID); recorded || going[s.ID] {
			continue
		}
		if err := addRecord(ctx, w, s); err != nil {
			return err
		}
	}
	return nil
}

// addRecord stores the record of a restore point that has none, unless it has been deleted meanwhile.
func addRecord(ctx context.Context, w repo.DirectRepositoryWriter, s *engine.StoredPoint) error {
	if there, err := existsNow(ctx, w, s.ID); err != nil || !there {
		return err
	}
	if err := engine.PutRecord(ctx, w, s.ID, s.Manifest); err != nil {
		return err
	}
	if there, err := existsNow(ctx, w, s.ID); err != nil || there {
		return err
	}
	return engine.RemoveRecords(ctx, w, []string{s.ID})
}

// existsNow says whether a restore point has a manifest now.
func existsNow(ctx context.Context, w repo.DirectRepositoryWriter, id string) (bool, error) {
	if err := w.Refresh(ctx); err != nil {
		return false, err
	}
	return engine.PointExists(ctx, w, id)
}

// extendObjectLocks extends the locks of records and of the format's copy, as kopia's maintenance does for its own blobs.
func extendObjectLocks(ctx context.Context, w repo.DirectRepositoryWriter) error {
	c, err := w.FormatManager().BlobCfgBlob(ctx)
	if err != nil || !c.IsRetentionEnabled() {
		return err
	}
	for _, prefix := range []blob.ID{storage.RecordPrefix, storage.FormatCopy} {
		blobs, err := storage.ListBlobs(ctx, w.BlobReader(), prefix)
		if err != nil {
			return err
		}
		for _, b := range blobs {
			err := w.BlobStorage().ExtendBlobRetention(ctx, b.BlobID, blob.ExtendOptions{RetentionMode: c.RetentionMode, RetentionPeriod: c.RetentionPeriod})
			if err != nil && !errors.Is(err, blob.ErrBlobNotFound) {
				return fmt.Errorf("extend the lock of %s: %w", b.BlobID, err)
			}
		}
	}
	return nil
}

// runningDeletions returns the restore points that somebody is deleting. It removes what is left of deletions that died.
func runningDeletions(ctx context.Context, w repo.DirectRepositoryWriter) (map[string]bool, error) {
	blobs, err := storage.ListBlobs(ctx, w.BlobReader(), storage.DeletingPrefix)
	if err != nil {
		return nil, err
	}
	out := map[string]bool{}
	for _, b := range blobs {
		id := strings.TrimPrefix(string(b.BlobID), storage.DeletingPrefix)
		if w.Time().Sub(b.Timestamp) < engine.DeletionLife {
			out[id] = true
		} else if err := engine.RemoveBlobs(ctx, w, storage.DeletingPrefix, []string{id}); err != nil {
			return nil, err
		}
	}
	return out, nil
}
