package maintain

import (
	"context"
	"fmt"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/snapshot"

	"github.com/varvebackup/varve/internal/repository/engine"
)

// DropStaleLeases removes the leases and session manifests of processes that died. Only maintenance calls it, once it knows that
// this machine's clock is right: a clock that is ahead would take everybody for dead.
func DropStaleLeases(ctx context.Context, w repo.DirectRepositoryWriter) error {
	err := engine.EachSnapshot(ctx, w, nil, func(m *snapshot.Manifest) error {
		life := engine.LifeOf(m)
		if life == 0 || w.Time().Sub(m.EndTime.ToTime()) < life {
			return nil
		}
		if err := engine.RemoveManifest(ctx, w, m.ID); err != nil {
			return err
		}
		engine.Reached("stale lease's end put")
		return nil
	})
	if err != nil {
		return fmt.Errorf("drop leases: %w", err)
	}
	return nil
}
