package repository

import (
	"context"
	"errors"
	"fmt"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"
)

// Delete removes restore points. Maintenance frees what no other restore point shares. A restore point that a running backup
// started from can be deleted; the backup keeps what it needs, and so does whoever has a Lease. If one of the restore points does
// not exist, or is pinned (ErrConflict), none is removed: the caller may have decided long ago. A lost restore point is
// forgotten.
func (r *Repository) Delete(ctx context.Context, ids ...string) error {
	found, err := r.deletable(ctx, ids)
	if err != nil {
		return err
	}
	err = r.change(ctx, "delete", func(ctx context.Context, w repo.DirectRepositoryWriter) error {
		if err := announce(ctx, w, ids); err != nil {
			return err
		}
		reached("deletion announced")
		if err := removeRecords(ctx, w, ids); err != nil {
			return err
		}
		reached("record removed")
		for _, s := range found {
			if err := s.remove(ctx, w); err != nil {
				return fmt.Errorf("restore point %s: %w", s.id, err)
			}
		}
		reached("deletion put")
		if err := w.Flush(ctx); err != nil {
			return err
		}
		reached("deletion stored")
		// Maintenance may have found one of them without a record before it was announced, and may have stored a record since.
		if err := removeRecords(ctx, w, ids); err != nil {
			return err
		}
		return removeBlobs(ctx, w, deletingPrefix, ids)
	})
	if err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	return nil
}

// Lost returns the restore points of which only the record is left: another program has deleted them, or what the repository
// knows of them is gone. Repair brings them back as long as their data exists, and Delete forgets them. They have an ID, and
// Source and Time if the record can be read. ErrCorrupt means that manifests are damaged; a restore point that is not found may
// be in one of those.
func (r *Repository) Lost(ctx context.Context) ([]*RestorePoint, error) {
	ids, _, err := r.lost(ctx)
	if err != nil {
		return nil, err
	}
	var out []*RestorePoint
	for _, id := range ids {
		p := &RestorePoint{ID: id}
		m, err := readRecord(ctx, r.rep, id)
		switch {
		case err == nil:
			p.Source, p.Time = Source{Host: m.Source.Host, User: m.Source.UserName, Path: m.Source.Path}, m.StartTime.ToTime().UTC()
		case errors.Is(err, blob.ErrBlobNotFound):
			continue // forgotten since
		case !errors.Is(err, ErrCorrupt):
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}

// deletable finds the restore points with these IDs, all or none.
func (r *Repository) deletable(ctx context.Context, ids []string) ([]*stored, error) {
	wanted := make(map[string]*stored, len(ids))
	for _, id := range ids {
		wanted[id] = nil
	}
	// Others may have published or pinned one of them since this connection last looked. Delete would then remove only its
	// record, or only the manifest that the pin has replaced.
	if err := r.rep.Refresh(ctx); err != nil {
		return nil, err
	}
	// Look at all manifests at once. Look up alone what that does not find, because the error then says why.
	some, _ := r.matching(ctx, func(id string) bool { _, ok := wanted[id]; return ok })
	for _, s := range some {
		wanted[s.id] = s
	}
	found := make([]*stored, len(ids))
	for i, id := range ids {
		if found[i] = wanted[id]; found[i] == nil {
			var err error
			if found[i], err = r.stored(ctx, id); errors.Is(err, ErrNotFound) {
				found[i], err = r.forgettable(ctx, id, err)
			}
			if err != nil {
				return nil, err
			}
		}
		if m := found[i].manifest; m != nil && len(usersPins(m.Pins)) > 0 {
			return nil, fmt.Errorf("%w: restore point %s is pinned; nothing was deleted", ErrConflict, id)
		}
	}
	return found, nil
}

// forgettable returns a restore point of which only the record is left, or the error notFound if there is no record either.
func (r *Repository) forgettable(ctx context.Context, id string, notFound error) (*stored, error) {
	_, err := r.rep.BlobReader().GetMetadata(ctx, blob.ID(recordPrefix+id))
	if errors.Is(err, blob.ErrBlobNotFound) {
		return nil, notFound
	}
	if err != nil {
		return nil, fmt.Errorf("record of restore point %s: %w", id, err)
	}
	return &stored{id: id}, nil
}

// change changes manifests: all of them, or none.
func (r *Repository) change(ctx context.Context, purpose string, do func(context.Context, repo.DirectRepositoryWriter) error) error {
	if err := r.writable(ctx); err != nil {
		return err
	}
	err := repo.DirectWriteSession(ctx, r.rep, repo.WriteSessionOptions{Purpose: "varve " + purpose}, do)
	return errors.Join(err, r.rep.Refresh(ctx))
}

// remove deletes the manifests of a restore point.
func (s *stored) remove(ctx context.Context, w repo.DirectRepositoryWriter) error {
	for _, id := range s.all {
		if err := removeManifest(ctx, w, id); err != nil {
			return err
		}
	}
	return nil
}
