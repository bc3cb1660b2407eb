package maintain

import (
	"context"
	"fmt"
	"time"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/snapshot"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/engine"
)

// Exclusive maintenance and backups keep out of each other's way. Each first stores its lock or its session manifest, and then
// looks for the other. Of two that begin at once, at least one sees the other and withdraws.

// checkNoBackup fails with errclass.Conflict while a backup is running. The error says whose.
func checkNoBackup(ctx context.Context, w repo.DirectRepositoryWriter) error {
	var running error
	err := engine.EachSnapshot(ctx, w, map[string]string{engine.TagSessionState: engine.SessionRunning}, func(m *snapshot.Manifest) error {
		heard := m.EndTime.ToTime()
		if running == nil && w.Time().Sub(heard) < engine.SessionLive {
			running = fmt.Errorf("%w: a backup of %s by %s runs since %s and was last heard of at %s; it counts for %s", errclass.Conflict,
				m.Source, m.Tags[engine.TagSessionOwner], m.StartTime.ToTime().Format(time.RFC3339), heard.Format(time.RFC3339), engine.SessionLive)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("look for running backups: %w", err)
	}
	return running
}
