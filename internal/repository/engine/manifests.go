package engine

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/content/index"
	"github.com/kopia/kopia/repo/manifest"
	"github.com/kopia/kopia/snapshot"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/table"
)

// StoredPoint is a restore point as kopia has it. A pin replaces its manifest. If two machines do so at once, each leaves a
// manifest. The newest counts, with the pins of all.
type StoredPoint struct {
	ID       string
	Manifest *snapshot.Manifest
	// manifests holds the IDs of its manifests.
	manifests []manifest.ID
}

// FindPoints returns the kopia snapshots that are restore points: of a source, or of all sources for nil; with an ID, or with any
// for "". kopia's own manager gives up when one content with manifests is damaged, and then nothing could be restored any more.
// In that case FindPoints reads the contents one by one, and the error holds the damage. Any other error means that nothing is
// known.
func (c *Connection) FindPoints(ctx context.Context, source *Source, id string) ([]*StoredPoint, error) {
	labels := manifestLabels(source, id)
	entries, err := c.findMatching(ctx, labels, func(string) bool { return true })
	if err != nil {
		return c.salvagePoints(ctx, labels)
	}
	return groupByPoint(entries)
}

// findMatching is findMatchingEntries. It does not believe the cache that manifests are damaged.
func (c *Connection) findMatching(ctx context.Context, labels map[string]string, match func(id string) bool) ([]manifestEntry, error) {
	entries, err := findMatchingEntries(ctx, c.Kopia, labels, match)
	if err != nil && ctx.Err() == nil && c.dropCache() {
		return findMatchingEntries(ctx, c.Kopia, labels, match)
	}
	return entries, err
}

// FindSelected is FindPoints for the restore points that a filter selects. It looks at the newest manifest of each, because an older
// one may have other labels: that of a backup that was repeated, and whose first attempt arrived late.
func (c *Connection) FindSelected(ctx context.Context, f *Filter) ([]*StoredPoint, error) {
	all, err := c.FindPoints(ctx, f.Source, "")
	wanted := map[string]string{}
	addUserTags(wanted, f.Group, f.Labels)
	return slices.DeleteFunc(all, func(s *StoredPoint) bool { return !hasLabels(s.Manifest.Tags, wanted) }), err
}

// FindMatching returns the restore points whose ID matches. It does not look at the manifests of the others, unless a content with
// manifests is damaged.
func (c *Connection) FindMatching(ctx context.Context, match func(id string) bool) ([]*StoredPoint, error) {
	labels := manifestLabels(nil, "")
	entries, err := c.findMatching(ctx, labels, match)
	if err == nil {
		return groupByPoint(entries)
	}
	all, err := c.salvagePoints(ctx, labels)
	return slices.DeleteFunc(all, func(s *StoredPoint) bool { return !match(s.ID) }), err
}

// EachSnapshot calls call for the kopia snapshots with these tags, including incomplete ones. It leaves out those that have been
// deleted since.
func EachSnapshot(ctx context.Context, rep repo.Repository, tags map[string]string, call func(*snapshot.Manifest) error) error {
	ids, err := snapshot.ListSnapshotManifests(ctx, rep, nil, tags)
	if err != nil {
		return err
	}
	for _, id := range ids {
		m, err := snapshot.LoadSnapshot(ctx, rep, id)
		if errors.Is(err, snapshot.ErrSnapshotNotFound) {
			continue
		}
		if err == nil {
			err = call(m)
		}
		if err != nil {
			return fmt.Errorf("snapshot %s: %w", id, err)
		}
	}
	return nil
}

// EachSnapshotID calls call for the IDs of the kopia snapshots with these tags, including incomplete ones.
func EachSnapshotID(ctx context.Context, rep repo.Repository, tags map[string]string, call func(manifest.ID) error) error {
	ids, err := snapshot.ListSnapshotManifests(ctx, rep, nil, tags)
	for _, id := range ids {
		if err = call(id); err != nil {
			break
		}
	}
	return err
}

// manifestLabels returns the labels that the manifests of restore points have: of a source, or of all sources for nil; with an ID, or
// with any for "".
func manifestLabels(source *Source, id string) map[string]string {
	labels := map[string]string{manifest.TypeLabelKey: snapshot.ManifestType, TagFormat: FormatTag}
	if source != nil {
		labels[snapshot.HostnameLabel], labels[snapshot.UsernameLabel], labels[snapshot.PathLabel] = source.Host, source.User, source.Path
	}
	if id != "" {
		labels[TagID] = id
	}
	return labels
}

// findEntries returns the manifests of the restore point with this ID.
func findEntries(ctx context.Context, rep repo.Repository, id string) ([]manifestEntry, error) {
	return findMatchingEntries(ctx, rep, manifestLabels(nil, id), func(string) bool { return true })
}

// findManifests finds manifests. If it cannot read them, it refreshes the repository and tries again: maintenance of another
// machine may have merged them, and freed those that this connection knows.
func findManifests(ctx context.Context, rep repo.Repository, labels map[string]string) ([]*manifest.EntryMetadata, error) {
	found, err := rep.FindManifests(ctx, labels)
	if table.IsMissing(err) && rep.Refresh(ctx) == nil {
		found, err = rep.FindManifests(ctx, labels)
	}
	return found, err
}

// findMatchingEntries returns the manifests with these labels whose restore point's ID matches.
func findMatchingEntries(ctx context.Context, rep repo.Repository, labels map[string]string, match func(id string) bool) ([]manifestEntry, error) {
	found, err := findManifests(ctx, rep, labels)
	if err != nil {
		return nil, fmt.Errorf("list restore points: %w", err)
	}
	var out []manifestEntry
	for _, f := range found {
		if !match(f.Labels[TagID]) {
			continue
		}
		e := manifestEntry{ID: f.ID, Labels: f.Labels, ModTime: f.ModTime}
		_, err := rep.GetManifest(ctx, f.ID, &e.Data)
		if errors.Is(err, manifest.ErrNotFound) {
			continue // deleted since
		}
		if err != nil {
			return nil, fmt.Errorf("restore point %s: %w", e.Labels[TagID], err)
		}
		out = append(out, e)
	}
	return out, nil
}

// groupByPoint combines manifests into restore points. The error holds what is not a restore point.
func groupByPoint(entries []manifestEntry) ([]*StoredPoint, error) {
	slices.SortFunc(entries, func(a, b manifestEntry) int { return b.ModTime.Compare(a.ModTime) })
	var out []*StoredPoint
	var bad []error
	byID := map[string]*StoredPoint{}
	for _, e := range entries {
		id := e.Labels[TagID]
		m := &snapshot.Manifest{}
		switch err := json.Unmarshal(e.Data, m); {
		case err != nil:
			bad = append(bad, fmt.Errorf("restore point %s: %w: %w", id, errclass.Corrupt, err))
			continue
		case m.IncompleteReason != "":
			continue
		case id == "":
			bad = append(bad, fmt.Errorf("%w: kopia snapshot %s has the tag varve and not the tag varve-id", errclass.Corrupt, e.ID))
			continue
		}
		m.ID = e.ID
		if p := byID[id]; p != nil {
			p.manifests = append(p.manifests, e.ID)
			p.Manifest.UpdatePins(m.Pins, nil)
			continue
		}
		byID[id] = &StoredPoint{ID: id, Manifest: m, manifests: []manifest.ID{e.ID}}
		out = append(out, byID[id])
	}
	return out, errors.Join(bad...)
}

// CheckWritable fails if the repository is not the one that was opened, or if its manifests are damaged.
func (c *Connection) CheckWritable(ctx context.Context) error {
	if err := c.CheckNotReplaced(ctx); err != nil {
		return err
	}
	return c.checkManifests(ctx)
}

// RefreshWritable is CheckWritable, after a refresh that shows what others have stored and deleted.
func (c *Connection) RefreshWritable(ctx context.Context) error {
	if err := c.CheckNotReplaced(ctx); err != nil {
		return err
	}
	if err := c.Kopia.Refresh(ctx); err != nil {
		return fmt.Errorf("look for what others have stored: %w", err)
	}
	return c.checkManifests(ctx)
}

// checkManifests fails with errclass.Corrupt if manifests are damaged. kopia can then neither add nor delete one, and does not say
// why.
func (c *Connection) checkManifests(ctx context.Context) error {
	_, err := findManifests(ctx, c.Kopia, map[string]string{manifest.TypeLabelKey: snapshot.ManifestType})
	if err == nil {
		return nil
	}
	if _, damage := c.salvagePoints(ctx, manifestLabels(nil, "")); errors.Is(damage, errclass.Corrupt) {
		return fmt.Errorf("nothing can be changed until the repository is repaired: %w", damage)
	}
	return fmt.Errorf("read the manifests: %w", err)
}

// manifestContent is a content with manifests as kopia stores it: gzipped JSON.
type manifestContent struct {
	Entries []manifestEntry `json:"entries"`
}

type manifestEntry struct {
	ID      manifest.ID       `json:"id"`
	Labels  map[string]string `json:"labels"`
	ModTime time.Time         `json:"modified"`
	Deleted bool              `json:"deleted"`
	Data    json.RawMessage   `json:"data"`
}

// salvagePoints reads every manifest that can be read, and returns the restore points with these labels. One whose deletion is in a
// damaged content comes back, which is the lesser evil.
func (c *Connection) salvagePoints(ctx context.Context, labels map[string]string) ([]*StoredPoint, error) {
	latest := map[manifest.ID]manifestEntry{}
	var bad []error
	options := content.IterateOptions{Range: index.PrefixRange(manifest.ContentPrefix)}
	err := c.Kopia.ContentReader().IterateContents(ctx, options, func(info content.Info) error {
		list, err := c.ReadManifests(ctx, info.ContentID)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, errclass.Corrupt):
			bad = append(bad, err)
		case err != nil: // The storage did not answer: the content may be intact.
			return err
		}
		for _, e := range list {
			if was, ok := latest[e.ID]; !ok || e.ModTime.After(was.ModTime) {
				latest[e.ID] = e
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list restore points: %w", err)
	}
	var found []manifestEntry
	for _, e := range latest {
		if !e.Deleted && hasLabels(e.Labels, labels) {
			found = append(found, e)
		}
	}
	out, err := groupByPoint(found)
	return out, errors.Join(append(bad, err)...)
}

// hasLabels says whether labels has all that are wanted, with the same values.
func hasLabels(labels, wanted map[string]string) bool {
	for key, value := range wanted {
		if found, ok := labels[key]; !ok || found != value {
			return false
		}
	}
	return true
}

// ReadManifests returns the manifests in a content. If they cannot be read because they are damaged, the error is
// errclass.Corrupt.
func (c *Connection) ReadManifests(ctx context.Context, id content.ID) ([]manifestEntry, error) {
	data, err := c.Reader().GetContent(ctx, id)
	if err != nil {
		return nil, table.WrapReadError(fmt.Sprintf("read manifests %s", id), err)
	}
	unpacked, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("%w: manifests %s: %w", errclass.Corrupt, id, err)
	}
	plain, err := io.ReadAll(unpacked)
	if err != nil {
		return nil, fmt.Errorf("%w: manifests %s: %w", errclass.Corrupt, id, err)
	}
	var e manifestContent
	if err := json.Unmarshal(plain, &e); err != nil {
		return nil, fmt.Errorf("%w: manifests %s: %w", errclass.Corrupt, id, err)
	}
	return e.Entries, nil
}

// Remove deletes the manifests of a restore point.
func (s *StoredPoint) Remove(ctx context.Context, w repo.DirectRepositoryWriter) error {
	for _, id := range s.manifests {
		if err := RemoveManifest(ctx, w, id); err != nil {
			return err
		}
	}
	return nil
}

// PointExists says whether a restore point has a manifest, as far as rep knows.
func PointExists(ctx context.Context, rep repo.Repository, id string) (bool, error) {
	found, err := findEntries(ctx, rep, id)
	return len(found) > 0, err
}

// CurrentPoint returns a restore point as rep knows it, or nil if it does not exist.
func CurrentPoint(ctx context.Context, rep repo.Repository, id string) (*StoredPoint, error) {
	entries, err := findEntries(ctx, rep, id)
	if err != nil {
		return nil, fmt.Errorf("restore point %s: %w", id, err)
	}
	found, err := groupByPoint(entries)
	if len(found) == 0 {
		return nil, err
	}
	return found[0], nil
}

// PointRoot returns the directory of a restore point as rep knows it, or nil if the restore point was deleted.
func PointRoot(ctx context.Context, rep repo.Repository, p *RestorePoint) (*snapshot.DirEntry, error) {
	s, err := CurrentPoint(ctx, rep, p.ID)
	if s == nil {
		return nil, err
	}
	return s.Manifest.RootEntry, nil
}
