package repository

import (
	"context"
	"errors"
	"fmt"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/internal/repository/storage"
)

// Delete removes restore points. Maintenance frees what no other restore point shares. A restore point that a running backup
// started from can be deleted; the backup keeps what it needs, and so does whoever has a Lease. If one of the restore points does
// not exist (ErrNoPoint), or is pinned (ErrPinned), none is removed: the caller may have decided long ago. A lost restore point is
// forgotten.
func (r *Repository) Delete(ctx context.Context, ids ...string) error {
	found, err := r.findDeletable(ctx, ids)
	if err != nil {
		return err
	}
	blobs := r.conn.Kopia.BlobReader()
	if storage.NeedsReserve(blobs) {
		storage.GiveUpReserve(blobs)
	}
	err = r.deletePoints(ctx, ids, found)
	if errors.Is(err, storage.ErrFull) && storage.GiveUpReserve(blobs) {
		err = r.deletePoints(ctx, ids, found)
	}
	if err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	return nil
}

// deletePoints removes restore points that were found. It may be called again after it failed.
func (r *Repository) deletePoints(ctx context.Context, ids []string, found []*engine.StoredPoint) error {
	return r.conn.Change(ctx, "delete", func(ctx context.Context, w repo.DirectRepositoryWriter) error {
		if err := engine.AnnounceDeletion(ctx, w, ids); err != nil {
			return err
		}
		engine.Reached("deletion announced")
		if err := engine.RemoveRecords(ctx, w, ids); err != nil {
			return err
		}
		engine.Reached("record removed")
		for _, s := range found {
			if err := s.Remove(ctx, w); err != nil {
				return fmt.Errorf("restore point %s: %w", s.ID, err)
			}
		}
		engine.Reached("deletion put")
		if err := w.Flush(ctx); err != nil {
			return err
		}
		engine.Reached("deletion stored")
		// Maintenance may have found one of them without a record before it was announced, and may have stored a record since.
		if err := engine.RemoveRecords(ctx, w, ids); err != nil {
			return err
		}
		return engine.RemoveBlobs(ctx, w, storage.DeletingPrefix, ids)
	})
}

// Lost returns the restore points of which only the record is left: another program has deleted them, or what the repository knows
// of them is gone. Repair brings them back as long as their data exists, and Delete forgets them. They have an ID, and Source,
// Time, Group and Labels if the record can be read. errclass.Corrupt means that manifests are damaged; a restore point that is not found may be in
// one of those.
func (r *Repository) Lost(ctx context.Context) ([]*RestorePoint, error) {
	ids, _, err := r.conn.FindLost(ctx)
	if err != nil {
		return nil, err
	}
	var out []*RestorePoint
	for _, id := range ids {
		p := &RestorePoint{ID: id}
		m, err := engine.ReadRecord(ctx, r.conn.Kopia, id)
		switch {
		case err == nil:
			p.Source, p.Time = Source{Host: m.Source.Host, User: m.Source.UserName, Path: m.Source.Path}, m.StartTime.ToTime().UTC()
			p.ReadTags(m.Tags)
		case errors.Is(err, blob.ErrBlobNotFound):
			continue // forgotten since
		case !errors.Is(err, errclass.Corrupt):
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}

// findDeletable finds the restore points with these IDs, all or none.
func (r *Repository) findDeletable(ctx context.Context, ids []string) ([]*engine.StoredPoint, error) {
	wanted := make(map[string]*engine.StoredPoint, len(ids))
	for _, id := range ids {
		wanted[id] = nil
	}
	// Others may have published or pinned one of them since this connection last looked. Delete would then remove only its
	// record, or only the manifest that the pin has replaced.
	if err := r.conn.Kopia.Refresh(ctx); err != nil {
		return nil, err
	}
	// Look at all manifests at once. Look up alone what that does not find, because the error then says why.
	some, _ := r.conn.FindMatching(ctx, func(id string) bool { _, ok := wanted[id]; return ok })
	for _, s := range some {
		wanted[s.ID] = s
	}
	found := make([]*engine.StoredPoint, len(ids))
	for i, id := range ids {
		if found[i] = wanted[id]; found[i] == nil {
			var err error
			if found[i], err = r.conn.FindPoint(ctx, id); errors.Is(err, errclass.NotFound) {
				found[i], err = r.findForgettable(ctx, id, err)
			}
			if err != nil {
				return nil, err
			}
		}
		if m := found[i].Manifest; m != nil && len(engine.UserPins(m.Pins)) > 0 {
			return nil, errclass.Errorf(ErrPinned, "%w: restore point %s is pinned; nothing was deleted", errclass.Conflict, id)
		}
	}
	return found, nil
}

// findForgettable returns a restore point of which only the record is left, or the error notFound if there is no record either.
func (r *Repository) findForgettable(ctx context.Context, id string, notFound error) (*engine.StoredPoint, error) {
	_, err := r.conn.Kopia.BlobReader().GetMetadata(ctx, blob.ID(storage.RecordPrefix+id))
	if errors.Is(err, blob.ErrBlobNotFound) {
		// Where the repository is not any more, there is no restore point either.
		if err := r.conn.CheckNotReplaced(ctx); err != nil {
			return nil, err
		}
		return nil, errclass.Errorf(ErrNoPoint, "%w", notFound)
	}
	if err != nil {
		return nil, fmt.Errorf("record of restore point %s: %w", id, err)
	}
	return &engine.StoredPoint{ID: id}, nil
}
