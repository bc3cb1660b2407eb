package maintain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/content/index"
	"github.com/kopia/kopia/repo/manifest"
	"github.com/kopia/kopia/snapshot"
	"golang.org/x/sync/errgroup"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/internal/repository/storage"
	"github.com/varvebackup/varve/internal/repository/table"
	"github.com/varvebackup/varve/internal/repository/verify"
)

// RepairReport is what Repair found and did.
type RepairReport struct {
	// Format lists the format blobs that were put back from their copy.
	Format []string `json:"format,omitempty"`
	// Indexes lists index blobs that could not be read and were removed.
	Indexes []string `json:"indexes,omitempty"`
	// Packs lists packs that are missing, too short or damaged although the index names contents in them. Verify says which restore
	// points have them. No backup takes those contents for stored: the next one that has them stores them again, which mends every
	// restore point that has them.
	Packs []string `json:"packs,omitempty"`
	// Contents is how many contents were found in the packs that no index named, or only where they are lost.
	Contents int64 `json:"contents"`
	// Manifests lists contents with manifests that could not be read and were removed.
	Manifests []string `json:"manifests,omitempty"`
	// Records lists restore points whose records were damaged or missing, and were stored again.
	Records []string `json:"records,omitempty"`
	// Points lists lost restore points that were put back from their records, and Lost the others, with the reason.
	Points []string    `json:"points,omitempty"`
	Lost   []LostPoint `json:"lost,omitempty"`
}

// LostPoint is a restore point that could not be put back.
type LostPoint struct {
	ID     string `json:"id"`
	Reason string `json:"reason"`
}

// Nothing says that there was nothing to repair. Packs that are lost cannot be repaired.
func (p *RepairReport) Nothing() bool {
	return len(p.Format)+len(p.Indexes)+len(p.Manifests)+len(p.Records)+len(p.Points)+len(p.Lost) == 0 && p.Contents == 0
}

// Repair mends what is not data: the format from its copy, indexes from the packs, and manifests from the records of the restore
// points. With dryRun it only looks, and Points lists all lost restore points. No backup may run meanwhile.
func Repair(ctx context.Context, configFile, password string, dryRun bool) (*RepairReport, error) {
	a, err := engine.LoadAccess(configFile, password)
	if err != nil {
		return nil, fmt.Errorf("repair: configuration %s: %w", configFile, err)
	}
	i, err := verify.Inspect(ctx, a)
	if err != nil {
		return nil, fmt.Errorf("repair: %w", err)
	}
	r := &repairer{Inspection: i, dryRun: dryRun}
	if err := errors.Join(r.repairAll(ctx), i.Close(ctx)); err != nil {
		return nil, fmt.Errorf("repair: %w", err)
	}
	return &r.report, nil
}

// repairer is one Repair.
type repairer struct {
	*verify.Inspection
	dryRun bool
	report RepairReport
	// losses is what the packs lack according to the index.
	losses *engine.Losses
	w      repo.DirectRepositoryWriter
}

func (r *repairer) repairAll(ctx context.Context) error {
	if r.Kopia.ClientOptions().ReadOnly && !r.dryRun {
		return fmt.Errorf("%w: the connection is read-only", errclass.Invalid)
	}
	// Look for damage while what cannot be read is out of sight.
	state, err := verify.CheckConnection(ctx, r.Connection, verify.Options{})
	if err != nil {
		return err
	}
	if !r.dryRun {
		if err := r.RecordDamage(ctx, state); err != nil {
			return err
		}
	}
	if err := r.repairBlobs(ctx); err != nil {
		return err
	}
	ctx, w, err := r.Kopia.NewDirectWriter(ctx, repo.WriteSessionOptions{Purpose: "varve repair"})
	if err != nil {
		return err
	}
	r.w = w
	return errors.Join(r.repairContents(ctx, state.Damaged() || len(r.DamagedIndexes) > 0), r.findLosses(ctx), w.Close(ctx))
}

// findLosses finds out which contents of the index are lost.
func (r *repairer) findLosses(ctx context.Context) (err error) {
	if err := r.Kopia.Refresh(ctx); err != nil {
		return fmt.Errorf("read the indexes again: %w", err)
	}
	if r.losses, err = r.FindLosses(ctx); err == nil {
		r.report.Packs = r.losses.Packs()
	}
	return err
}

// repairBlobs puts the format back and removes the indexes that cannot be read.
func (r *repairer) repairBlobs(ctx context.Context) error {
	options, err := engine.ObjectLockOptions(ctx, r.Kopia.FormatManager())
	if err != nil {
		return err
	}
	for id, data := range r.DamagedFormat {
		r.report.Format = append(r.report.Format, string(id))
		if r.dryRun {
			continue
		}
		if err := r.Storage.PutBlob(ctx, id, storage.Bytes(data), options); err != nil {
			return fmt.Errorf("put %s back: %w", id, err)
		}
	}
	slices.Sort(r.report.Format)
	if r.dryRun {
		for _, id := range r.DamagedIndexes {
			r.report.Indexes = append(r.report.Indexes, string(id))
		}
		return nil
	}
	return r.removeIndexes(ctx)
}

// removeIndexes removes the indexes that cannot be read. It looks at each again first, because much time has passed since the
// first look.
func (r *repairer) removeIndexes(ctx context.Context) error {
	for _, id := range r.DamagedIndexes {
		damaged, err := r.IsDamagedIndex(ctx, id)
		if err != nil {
			return err
		}
		if !damaged {
			continue
		}
		r.report.Indexes = append(r.report.Indexes, string(id))
		if err := r.Storage.DeleteBlob(ctx, id); err != nil {
			return fmt.Errorf("remove index %s: %w", id, err)
		}
	}
	if len(r.DamagedIndexes) == 0 {
		return nil
	}
	r.View.Hide(func(id blob.ID) bool { return slices.Contains(r.report.Indexes, string(id)) })
	return r.Kopia.Refresh(ctx)
}

// repairContents mends what is in the packs, if anything is damaged.
func (r *repairer) repairContents(ctx context.Context, damaged bool) (err error) {
	if !damaged {
		return nil
	}
	lost, known, bad := r.FindLost(ctx)
	if bad != nil && !errors.Is(bad, errclass.Corrupt) {
		return bad
	}
	if err := r.dropManifests(ctx); err != nil {
		return err
	}
	if err := r.storeRecords(ctx, known); err != nil {
		return err
	}
	if r.dryRun {
		r.report.Points = lost
		return r.recoverIndexes(ctx)
	}
	held, l, err := r.Lock(ctx, "maintenance")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Release()) }()
	if err := r.recoverIndexes(held); err != nil {
		return err
	}
	if err := r.dropManifests(held); err != nil {
		return err
	}
	if err := r.deleteAgain(held, known); err != nil {
		return err
	}
	if err := r.restoreLostPoints(held); err != nil {
		return err
	}
	return r.dropFinishedSessions(held)
}

// dropManifests removes contents with manifests that cannot be read. With one of them kopia reads no manifests at all.
func (r *repairer) dropManifests(ctx context.Context) error {
	var bad []content.ID
	options := content.IterateOptions{Range: index.PrefixRange(manifest.ContentPrefix)}
	err := r.Kopia.ContentReader().IterateContents(ctx, options, func(info content.Info) error {
		if _, err := r.ReadManifests(ctx, info.ContentID); errors.Is(err, errclass.Corrupt) {
			bad = append(bad, info.ContentID)
		} else if err != nil {
			return err
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, id := range bad {
		r.report.Manifests = append(r.report.Manifests, id.String())
		if r.dryRun {
			continue
		}
		if err := r.w.ContentManager().DeleteContent(ctx, id); err != nil {
			return fmt.Errorf("remove manifests %s: %w", id, err)
		}
	}
	return r.flushChanges(ctx)
}

func (r *repairer) flushChanges(ctx context.Context) error {
	if r.dryRun {
		return nil
	}
	return errors.Join(r.w.Flush(ctx), r.w.Refresh(ctx), r.Kopia.Refresh(ctx))
}

// storeRecords stores damaged and missing records again.
func (r *repairer) storeRecords(ctx context.Context, known []*engine.StoredPoint) error {
	for _, s := range known {
		_, err := engine.ReadRecord(ctx, r.Kopia, s.ID)
		if err == nil {
			continue
		}
		if !errors.Is(err, errclass.Corrupt) {
			return err
		}
		r.report.Records = append(r.report.Records, s.ID)
		if r.dryRun {
			continue
		}
		if err := engine.PutRecord(ctx, r.w, s.ID, s.Manifest); err != nil {
			return err
		}
	}
	return nil
}

// recoverIndexes adds contents that no index names, or only where they are lost, to an index. Each pack has a list of what is in it.
func (r *repairer) recoverIndexes(ctx context.Context) error {
	if err := r.findLosses(ctx); err != nil {
		return err
	}
	var packs []blob.Metadata
	for _, prefix := range content.PackBlobIDPrefixes {
		more, err := storage.ListBlobs(ctx, r.Storage, prefix)
		if err != nil {
			return err
		}
		packs = append(packs, more...)
	}
	var mu sync.Mutex
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(table.DefaultWorkers)
	for _, p := range packs {
		group.Go(func() error {
			n, err := r.recoverPack(inner, p)
			mu.Lock()
			defer mu.Unlock()
			r.report.Contents += n
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return r.flushChanges(ctx)
}

func (r *repairer) recoverPack(ctx context.Context, p blob.Metadata) (int64, error) {
	held, err := r.w.ContentManager().RecoverIndexFromPackBlob(ctx, p.BlobID, p.Length, false)
	if err != nil {
		// The pack is damaged. What is left of it is in the index or nowhere. Verify says what is affected.
		_, err := storage.ReadBlob(ctx, r.Storage, p.BlobID)
		return 0, err
	}
	var missed int64
	for _, info := range held {
		known, err := r.Kopia.ContentReader().ContentInfo(ctx, info.ContentID)
		switch {
		case table.IsMissing(err):
			missed++
		case err != nil:
			return 0, err
		case r.losses.Has(known) && !r.losses.Has(info) && info.TimestampSeconds > known.TimestampSeconds:
			missed++ // A backup has stored it again, and the index that says so was lost.
		}
	}
	if missed > 0 && !r.dryRun {
		_, err = r.w.ContentManager().RecoverIndexFromPackBlob(ctx, p.BlobID, p.Length, true)
	}
	return missed, err
}

// deleteAgain removes restore points that came back with the contents of packs that were about to be deleted.
func (r *repairer) deleteAgain(ctx context.Context, known []*engine.StoredPoint) error {
	records, err := r.RecordedPoints(ctx)
	if err != nil {
		return err
	}
	now, err := r.FindPoints(ctx, nil, "")
	if err != nil {
		return err
	}
	for _, s := range now {
		if slices.Contains(records, s.ID) || slices.ContainsFunc(known, func(k *engine.StoredPoint) bool { return k.ID == s.ID }) {
			continue
		}
		if err := s.Remove(ctx, r.w); err != nil {
			return fmt.Errorf("restore point %s: %w", s.ID, err)
		}
	}
	return r.flushChanges(ctx)
}

// restoreLostPoints puts lost restore points back, if their directory still exists.
func (r *repairer) restoreLostPoints(ctx context.Context) error {
	lost, _, err := r.FindLost(ctx)
	if err != nil {
		return err
	}
	for _, id := range lost {
		err := r.restoreLostPoint(ctx, id)
		if err != nil && !errors.Is(err, errclass.Corrupt) {
			return fmt.Errorf("restore point %s: %w", id, err)
		}
		if err != nil {
			r.report.Lost = append(r.report.Lost, LostPoint{ID: id, Reason: err.Error()})
			continue
		}
		r.report.Points = append(r.report.Points, id)
	}
	return r.flushChanges(ctx)
}

func (r *repairer) restoreLostPoint(ctx context.Context, id string) error {
	m, err := engine.ReadRecord(ctx, r.Kopia, id)
	if err != nil {
		return err
	}
	if _, err := engine.ReadPoint(ctx, r.Reader(), &engine.StoredPoint{ID: id, Manifest: m}); err != nil {
		return err
	}
	_, err = snapshot.SaveSnapshot(ctx, r.w, m)
	return err
}

// dropFinishedSessions removes session manifests that came back although their restore point exists, and those whose directory
// cannot be read: with one of these, no garbage is collected for two weeks. A backup that is still running stores its session
// manifest again.
func (r *repairer) dropFinishedSessions(ctx context.Context) error {
	points, err := r.FindPoints(ctx, nil, "")
	if err != nil {
		return err
	}
	err = engine.EachSnapshot(ctx, r.w, nil, func(m *snapshot.Manifest) error {
		session := m.Tags[engine.TagSession]
		if session == "" {
			return nil
		}
		if !slices.ContainsFunc(points, func(p *engine.StoredPoint) bool { return p.ID == session }) {
			if damaged, err := r.isDamagedSession(ctx, m); err != nil || !damaged {
				return err
			}
		}
		return engine.RemoveManifest(ctx, r.w, m.ID)
	})
	if err != nil {
		return fmt.Errorf("remove finished sessions: %w", err)
	}
	return r.flushChanges(ctx)
}

// isDamagedSession says whether the directory of a session manifest cannot be read because it is damaged.
func (r *repairer) isDamagedSession(ctx context.Context, m *snapshot.Manifest) (bool, error) {
	if _, err := table.ReadShortObject(ctx, r.Reader(), m.RootObjectID()); err != nil {
		err = table.WrapReadError("read its directory", err)
		if errors.Is(err, errclass.Corrupt) {
			return true, nil
		}
		return false, err
	}
	return false, nil
}
