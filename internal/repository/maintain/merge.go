package maintain

import (
	"context"
	"fmt"

	"github.com/kopia/kopia/repo"

	"github.com/varvebackup/varve/internal/repository/engine"
)

// MergeThreshold is how many contents with manifests make merging worthwhile. Each backup leaves two or three, and everybody who
// opens the repository reads all of them.
const MergeThreshold = 8

// mergeManifests merges all contents with manifests into one. Deleted manifests then go for good, so only the holder of the
// maintenance lock may call it: see the guard in package storage.
func mergeManifests(ctx context.Context, w repo.DirectRepositoryWriter) error {
	found, err := engine.CountManifestContents(ctx, w)
	if err != nil || found < MergeThreshold {
		return err
	}
	m, err := engine.NewManifestManager(ctx, w, w.Time)
	if err == nil {
		_, err = m.Find(ctx, nil) // Find reads them.
	}
	if err == nil {
		err = m.Compact(ctx)
	}
	if err != nil {
		return fmt.Errorf("merge manifests: %w", err)
	}
	engine.Reached("merged manifests put")
	if err := w.Flush(ctx); err != nil {
		return fmt.Errorf("merge manifests: %w", err)
	}
	engine.Reached("merged manifests stored")
	return nil
}
