package repository

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/manifest"
	"github.com/kopia/kopia/snapshot"
)

// Exclusive maintenance and backups keep out of each other's way. Each first stores its lock or its session manifest, and then
// looks for the other. Of two that begin at once, at least one sees the other and withdraws.

// noSession fails with ErrConflict while a backup is running. The error says whose.
func noSession(ctx context.Context, w repo.DirectRepositoryWriter) error {
	var running error
	err := eachSnapshot(ctx, w, map[string]string{tagSessionState: sessionRunning}, func(m *snapshot.Manifest) error {
		heard := m.EndTime.ToTime()
		if running == nil && w.Time().Sub(heard) < sessionLive {
			running = fmt.Errorf("%w: a backup of %s by %s runs since %s and was last heard of at %s; it counts for %s", ErrConflict,
				m.Source, m.Tags[tagSessionOwner], m.StartTime.ToTime().Format(time.RFC3339), heard.Format(time.RFC3339), sessionLive)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("look for running backups: %w", err)
	}
	return running
}

// noExclusiveMaintenance fails with ErrConflict while exclusive maintenance is running, which relies on nobody else using the
// repository.
func noExclusiveMaintenance(ctx context.Context, w repo.DirectRepositoryWriter) error {
	locks, err := w.FindManifests(ctx, map[string]string{manifest.TypeLabelKey: lockType, "purpose": maintenancePurpose})
	if err != nil {
		return fmt.Errorf("look for exclusive maintenance: %w", err)
	}
	for _, m := range locks {
		var h holder
		_, err := w.GetManifest(ctx, m.ID, &h)
		if errors.Is(err, manifest.ErrNotFound) {
			continue
		}
		if err != nil {
			return fmt.Errorf("look for exclusive maintenance: %w", err)
		}
		switch {
		case !h.Exclusive:
		case w.Time().Sub(m.ModTime) <= lockLife:
			return fmt.Errorf("exclusive maintenance: %w", &conflict{h})
		default:
			if err := clockIsRight(ctx, w); err != nil {
				return fmt.Errorf("exclusive maintenance: %w", err)
			}
		}
	}
	return nil
}
