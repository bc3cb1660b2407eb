package repository

import (
	"context"
	"errors"
	"fmt"

	"github.com/kopia/kopia/repo"
)

// Delete removes restore points. What no other one shares is freed by maintenance. A restore point that a running backup started
// from can go; the backup keeps what it needs. If one of them is not there, none is removed.
func (r *Repository) Delete(ctx context.Context, ids ...string) error {
	var found []*stored
	for _, id := range ids {
		s, err := r.stored(ctx, id)
		if err != nil {
			return err
		}
		found = append(found, s)
	}
	err := r.change(ctx, "delete", func(ctx context.Context, w repo.RepositoryWriter) error {
		for _, s := range found {
			if err := s.remove(ctx, w); err != nil {
				return fmt.Errorf("restore point %s: %w", s.id, err)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	return nil
}

// change changes manifests, all of them or none.
func (r *Repository) change(ctx context.Context, purpose string, do func(context.Context, repo.RepositoryWriter) error) error {
	err := repo.WriteSession(ctx, r.rep, repo.WriteSessionOptions{Purpose: "varve " + purpose}, do)
	return errors.Join(err, r.rep.Refresh(ctx))
}

// remove deletes the manifests of a restore point.
func (s *stored) remove(ctx context.Context, w repo.RepositoryWriter) error {
	for _, id := range s.all {
		if err := w.DeleteManifest(ctx, id); err != nil {
			return err
		}
	}
	return nil
}
