package repository

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
)

// RepairReport is what Repair found and did. It does not list damaged packs: what they held is gone, and Verify names it.
type RepairReport struct {
	// Format lists the format blobs that were put back from their copy.
	Format []string `json:"format,omitempty"`
	// Indexes lists index blobs that could not be read and were removed.
	Indexes []string `json:"indexes,omitempty"`
	// Contents is how many contents that no index named were found in the packs.
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

// Nothing says that there was nothing to repair.
func (p *RepairReport) Nothing() bool {
	return len(p.Format)+len(p.Indexes)+len(p.Manifests)+len(p.Records)+len(p.Points)+len(p.Lost) == 0 && p.Contents == 0
}

// Repair mends what is not data: the format from its copy, indexes from the packs, and manifests from the records of the restore
// points. With dryRun it only looks, and Points lists all lost restore points. No backup may run meanwhile.
func Repair(ctx context.Context, configFile, password string, dryRun bool) (*RepairReport, error) {
	i, err := inspect(ctx, configFile, password)
	if err != nil {
		return nil, fmt.Errorf("repair: %w", err)
	}
	r := &repair{inspection: i, dryRun: dryRun}
	if err := errors.Join(r.run(ctx), i.Close(ctx)); err != nil {
		return nil, fmt.Errorf("repair: %w", err)
	}
	return &r.report, nil
}

// repair is one Repair.
type repair struct {
	*inspection
	dryRun bool
	report RepairReport
	w      repo.DirectRepositoryWriter
}

func (r *repair) run(ctx context.Context) error {
	if r.rep.ClientOptions().ReadOnly && !r.dryRun {
		return fmt.Errorf("%w: the connection is read-only", ErrInvalid)
	}
	// Look for damage while what cannot be read is out of sight.
	state, err := r.verify(ctx, VerifyOptions{})
	if err != nil {
		return err
	}
	if err := r.blobs(ctx); err != nil {
		return err
	}
	ctx, w, err := r.rep.NewDirectWriter(ctx, repo.WriteSessionOptions{Purpose: "varve repair"})
	if err != nil {
		return err
	}
	r.w = w
	return errors.Join(r.contents(ctx, state.Damaged() || len(r.indexes) > 0), w.Close(ctx))
}

// blobs puts the format back and removes the indexes that cannot be read.
func (r *repair) blobs(ctx context.Context) error {
	options, err := lockOptions(ctx, r.rep.FormatManager())
	if err != nil {
		return err
	}
	for id, data := range r.format {
		r.report.Format = append(r.report.Format, string(id))
		if r.dryRun {
			continue
		}
		if err := r.storage.PutBlob(ctx, id, blobBytes(data), options); err != nil {
			return fmt.Errorf("put %s back: %w", id, err)
		}
	}
	slices.Sort(r.report.Format)
	if r.dryRun {
		for _, id := range r.indexes {
			r.report.Indexes = append(r.report.Indexes, string(id))
		}
		return nil
	}
	return r.removeIndexes(ctx)
}

// removeIndexes removes the indexes that cannot be read. It looks at each again first, because much time has passed since the
// first look.
func (r *repair) removeIndexes(ctx context.Context) error {
	for _, id := range r.indexes {
		damaged, err := r.isDamagedIndex(ctx, id)
		if err != nil {
			return err
		}
		if !damaged {
			continue
		}
		r.report.Indexes = append(r.report.Indexes, string(id))
		if err := r.storage.DeleteBlob(ctx, id); err != nil {
			return fmt.Errorf("remove index %s: %w", id, err)
		}
	}
	if len(r.indexes) == 0 {
		return nil
	}
	r.view.hide(func(id blob.ID) bool { return slices.Contains(r.report.Indexes, string(id)) })
	return r.rep.Refresh(ctx)
}

// contents mends what is in the packs, if anything is damaged.
func (r *repair) contents(ctx context.Context, damaged bool) (err error) {
	if !damaged {
		return nil
	}
	lost, known, bad := r.lost(ctx)
	if bad != nil && !errors.Is(bad, ErrCorrupt) {
		return bad
	}
	if err := r.dropManifests(ctx); err != nil {
		return err
	}
	if err := r.records(ctx, known); err != nil {
		return err
	}
	if r.dryRun {
		r.report.Points = lost
		return r.recover(ctx)
	}
	held, l, err := r.lock(ctx, "maintenance")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.release()) }()
	if err := r.recover(held); err != nil {
		return err
	}
	if err := r.dropManifests(held); err != nil {
		return err
	}
	if err := r.deleteAgain(held, known); err != nil {
		return err
	}
	if err := r.restorePoints(held); err != nil {
		return err
	}
	return r.dropFinishedSessions(held)
}

// dropManifests removes contents with manifests that cannot be read. With one of them kopia reads no manifests at all.
func (r *repair) dropManifests(ctx context.Context) error {
	var bad []content.ID
	options := content.IterateOptions{Range: index.PrefixRange(manifest.ContentPrefix)}
	err := r.rep.ContentReader().IterateContents(ctx, options, func(info content.Info) error {
		if _, err := r.entries(ctx, info.ContentID); errors.Is(err, ErrCorrupt) {
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
	return r.flush(ctx)
}

func (r *repair) flush(ctx context.Context) error {
	if r.dryRun {
		return nil
	}
	return errors.Join(r.w.Flush(ctx), r.w.Refresh(ctx), r.rep.Refresh(ctx))
}

// records stores damaged and missing records again.
func (r *repair) records(ctx context.Context, known []*stored) error {
	for _, s := range known {
		_, err := readRecord(ctx, r.rep, s.id)
		if err == nil {
			continue
		}
		if !errors.Is(err, ErrCorrupt) {
			return err
		}
		r.report.Records = append(r.report.Records, s.id)
		if r.dryRun {
			continue
		}
		if err := putRecord(ctx, r.w, s.id, s.manifest); err != nil {
			return err
		}
	}
	return nil
}

// recover adds contents that no index names to an index. Each pack has a list of what is in it.
func (r *repair) recover(ctx context.Context) error {
	var packs []blob.Metadata
	for _, prefix := range content.PackBlobIDPrefixes {
		more, err := listBlobs(ctx, r.storage, prefix)
		if err != nil {
			return err
		}
		packs = append(packs, more...)
	}
	var mu sync.Mutex
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(DefaultWorkers)
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
	return r.flush(ctx)
}

func (r *repair) recoverPack(ctx context.Context, p blob.Metadata) (int64, error) {
	held, err := r.w.ContentManager().RecoverIndexFromPackBlob(ctx, p.BlobID, p.Length, false)
	if err != nil {
		// The pack is damaged. What is left of it is in the index or nowhere. Verify says what is affected.
		_, err := readBlob(ctx, r.storage, p.BlobID)
		return 0, err
	}
	var missed int64
	for _, info := range held {
		if _, err := r.rep.ContentReader().ContentInfo(ctx, info.ContentID); missing(err) {
			missed++
		} else if err != nil {
			return 0, err
		}
	}
	if missed > 0 && !r.dryRun {
		_, err = r.w.ContentManager().RecoverIndexFromPackBlob(ctx, p.BlobID, p.Length, true)
	}
	return missed, err
}

// deleteAgain removes restore points that came back with the contents of packs that were about to be deleted.
func (r *repair) deleteAgain(ctx context.Context, known []*stored) error {
	records, err := r.recorded(ctx)
	if err != nil {
		return err
	}
	now, err := r.snapshots(ctx, nil, "")
	if err != nil {
		return err
	}
	for _, s := range now {
		if slices.Contains(records, s.id) || slices.ContainsFunc(known, func(k *stored) bool { return k.id == s.id }) {
			continue
		}
		if err := s.remove(ctx, r.w); err != nil {
			return fmt.Errorf("restore point %s: %w", s.id, err)
		}
	}
	return r.flush(ctx)
}

// restorePoints puts lost restore points back, if their directory still exists.
func (r *repair) restorePoints(ctx context.Context) error {
	lost, _, err := r.lost(ctx)
	if err != nil {
		return err
	}
	for _, id := range lost {
		err := r.restorePoint(ctx, id)
		if err != nil && !errors.Is(err, ErrCorrupt) {
			return fmt.Errorf("restore point %s: %w", id, err)
		}
		if err != nil {
			r.report.Lost = append(r.report.Lost, LostPoint{ID: id, Reason: err.Error()})
			continue
		}
		r.report.Points = append(r.report.Points, id)
	}
	return r.flush(ctx)
}

func (r *repair) restorePoint(ctx context.Context, id string) error {
	m, err := readRecord(ctx, r.rep, id)
	if err != nil {
		return err
	}
	if _, err := readPoint(ctx, r.reader(), &stored{id: id, manifest: m}); err != nil {
		return err
	}
	_, err = snapshot.SaveSnapshot(ctx, r.w, m)
	return err
}

// dropFinishedSessions removes session manifests that came back although their restore point exists, and those whose directory
// cannot be read: with one of these, no garbage is collected for two weeks. A backup that is still running stores its session
// manifest again.
func (r *repair) dropFinishedSessions(ctx context.Context) error {
	points, err := r.snapshots(ctx, nil, "")
	if err != nil {
		return err
	}
	err = eachSnapshot(ctx, r.w, nil, func(m *snapshot.Manifest) error {
		session := m.Tags[tagSession]
		if session == "" {
			return nil
		}
		if !slices.ContainsFunc(points, func(p *stored) bool { return p.id == session }) {
			if damaged, err := r.isDamagedSession(ctx, m); err != nil || !damaged {
				return err
			}
		}
		return removeManifest(ctx, r.w, m.ID)
	})
	if err != nil {
		return fmt.Errorf("remove finished sessions: %w", err)
	}
	return r.flush(ctx)
}

// isDamagedSession says whether the directory of a session manifest cannot be read because it is damaged.
func (r *repair) isDamagedSession(ctx context.Context, m *snapshot.Manifest) (bool, error) {
	if _, err := readBytes(ctx, r.reader(), m.RootObjectID()); err != nil {
		err = readError("read its directory", err)
		if errors.Is(err, ErrCorrupt) {
			return true, nil
		}
		return false, err
	}
	return false, nil
}
