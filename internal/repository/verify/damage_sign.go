package verify

import (
	"context"
	"errors"
	"fmt"

	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/maintenance"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/engine"
)

// errDamageSign ends a search early.
var errDamageSign = errors.New("a content has no place in the storage")

// HasSignOfDamage says whether there is a reason to look for damage with Verify. It reads no tables: it costs a list of the blobs
// and a walk through the index, which is in memory. It relies on garbage collection, which reads all tables and fails if a
// content is in no index. The signs are: the last collection failed, a restore point cannot be read or is lost, or a blob that
// the index names is missing or too short.
func HasSignOfDamage(ctx context.Context, c *engine.Connection) (bool, error) {
	schedule, err := maintenance.GetSchedule(ctx, c.Kopia)
	if err != nil {
		return false, fmt.Errorf("read when garbage was collected, from blob kopia.maintenance: %w", err)
	}
	if lastCollectionFailed(schedule) {
		return true, nil
	}
	lost, _, err := c.FindLost(ctx)
	if errors.Is(err, errclass.Corrupt) || len(lost) > 0 {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	packs, err := engine.ListPacks(ctx, c.Kopia.BlobReader())
	if err != nil {
		return false, err
	}
	err = c.Kopia.ContentReader().IterateContents(ctx, content.IterateOptions{}, func(info content.Info) error {
		there, err := packs.HoldsContent(ctx, info)
		if err == nil && !there {
			err = errDamageSign
		}
		return errors.Join(err, ctx.Err())
	})
	if errors.Is(err, errDamageSign) {
		return true, nil
	}
	return false, err
}

// lastCollectionFailed says whether the last garbage collection failed, maybe because a content is missing.
func lastCollectionFailed(schedule *maintenance.Schedule) bool {
	runs := schedule.Runs[maintenance.TaskSnapshotGarbageCollection] // The newest is the first.
	return len(runs) > 0 && !runs[0].Success
}
