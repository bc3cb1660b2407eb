package repository

import (
	"context"
	"errors"
	"fmt"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/manifest"
)

// Delete removes restore points. What no other one shares is freed by maintenance. A restore point that a running backup started
// from can go; the backup keeps what it needs.
func (r *Repository) Delete(ctx context.Context, ids ...string) error {
	for _, id := range ids {
		if _, err := r.Get(ctx, id); err != nil && !errors.Is(err, ErrCorrupt) {
			return err
		}
	}
	err := repo.WriteSession(ctx, r.rep, repo.WriteSessionOptions{Purpose: "varve delete"}, func(ctx context.Context, w repo.RepositoryWriter) error {
		for _, id := range ids {
			if err := w.DeleteManifest(ctx, manifest.ID(id)); err != nil {
				return fmt.Errorf("restore point %s: %w", id, err)
			}
		}
		reached("deletion put")
		return nil
	})
	if err := errors.Join(err, r.rep.Refresh(ctx)); err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	reached("deletion stored")
	return nil
}
