package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/content/index"
	"github.com/kopia/kopia/repo/manifest"

	"github.com/varvebackup/varve/internal/repository/table"
)

// CountManifestContents counts the contents that have manifests.
func CountManifestContents(ctx context.Context, r repo.DirectRepository) (n int, err error) {
	options := content.IterateOptions{Range: index.PrefixRange(manifest.ContentPrefix)}
	if err := r.ContentReader().IterateContents(ctx, options, func(content.Info) error { n++; return nil }); err != nil {
		return 0, fmt.Errorf("count the manifests: %w", err)
	}
	return n, nil
}

// RemoveManifest deletes a manifest with the writer's next flush. A manifest that does not exist is no error. Of a manifest and
// its deletion the later one counts, so the deletion of a manifest whose time is ahead of this clock gets a later time.
func RemoveManifest(ctx context.Context, w repo.DirectRepositoryWriter, id manifest.ID) error {
	found, err := w.GetManifest(ctx, id, nil)
	if table.IsMissing(err) && w.Refresh(ctx) == nil { // Maintenance of another machine has moved the manifests.
		found, err = w.GetManifest(ctx, id, nil)
	}
	if errors.Is(err, manifest.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := w.DeleteManifest(ctx, id); err != nil || found.ModTime.Before(w.Time().Add(-time.Millisecond)) {
		return err
	}
	later := found.ModTime.Add(time.Millisecond)
	m, err := NewManifestManager(ctx, w, func() time.Time { return later })
	if err == nil {
		err = m.Delete(ctx, id)
	}
	if err == nil {
		err = m.Flush(ctx)
	}
	return err
}

// NewManifestManager returns a manager of the manifests that has its own clock. The writer's next flush stores its changes.
func NewManifestManager(ctx context.Context, w repo.DirectRepositoryWriter, now func() time.Time) (*manifest.Manager, error) {
	return manifest.NewManager(ctx, w.ContentManager(), manifest.ManagerOptions{TimeNow: now}, nil)
}
