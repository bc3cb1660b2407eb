package repository

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
)

// stored is a restore point as kopia has it. A pin replaces its manifest. If two machines do so at once, each leaves a manifest.
// The newest counts, with the pins of all.
type stored struct {
	id       string
	manifest *snapshot.Manifest
	// all holds the IDs of its manifests.
	all []manifest.ID
}

// snapshots returns the kopia snapshots that are restore points: of a source, or of all sources for nil; with an ID, or with any
// for "". kopia's own manager gives up when one content with manifests is damaged, and then nothing could be restored any more.
// In that case snapshots reads the contents one by one, and the error holds the damage. Any other error means that nothing is
// known.
func (r *Repository) snapshots(ctx context.Context, source *Source, id string) ([]*stored, error) {
	entries, err := find(ctx, r.rep, source, id)
	if err != nil {
		return r.salvage(ctx, source, id)
	}
	return group(entries)
}

// matching returns the restore points whose ID matches. It does not look at the manifests of the others, unless a content with
// manifests is damaged.
func (r *Repository) matching(ctx context.Context, match func(id string) bool) ([]*stored, error) {
	entries, err := findMatching(ctx, r.rep, map[string]string{manifest.TypeLabelKey: snapshot.ManifestType, tagFormat: formatTag}, match)
	if err == nil {
		return group(entries)
	}
	all, err := r.salvage(ctx, nil, "")
	return slices.DeleteFunc(all, func(s *stored) bool { return !match(s.id) }), err
}

// eachSnapshot calls call for the kopia snapshots with these tags, including incomplete ones. It leaves out those that have been
// deleted since.
func eachSnapshot(ctx context.Context, rep repo.Repository, tags map[string]string, call func(*snapshot.Manifest) error) error {
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

// find looks restore points up the way kopia does.
func find(ctx context.Context, rep repo.Repository, source *Source, id string) ([]entry, error) {
	labels := map[string]string{manifest.TypeLabelKey: snapshot.ManifestType, tagFormat: formatTag}
	if source != nil {
		labels[snapshot.HostnameLabel], labels[snapshot.UsernameLabel], labels[snapshot.PathLabel] = source.Host, source.User, source.Path
	}
	if id != "" {
		labels[tagID] = id
	}
	return findMatching(ctx, rep, labels, func(string) bool { return true })
}

// findManifests finds manifests. If it cannot read them, it refreshes the repository and tries again: maintenance of another
// machine may have merged them, and freed those that this connection knows.
func findManifests(ctx context.Context, rep repo.Repository, labels map[string]string) ([]*manifest.EntryMetadata, error) {
	found, err := rep.FindManifests(ctx, labels)
	if missing(err) && rep.Refresh(ctx) == nil {
		found, err = rep.FindManifests(ctx, labels)
	}
	return found, err
}

// findMatching returns the manifests with these labels whose restore point's ID matches.
func findMatching(ctx context.Context, rep repo.Repository, labels map[string]string, match func(id string) bool) ([]entry, error) {
	found, err := findManifests(ctx, rep, labels)
	if err != nil {
		return nil, fmt.Errorf("list restore points: %w", err)
	}
	var out []entry
	for _, f := range found {
		if !match(f.Labels[tagID]) {
			continue
		}
		e := entry{ID: f.ID, Labels: f.Labels, ModTime: f.ModTime}
		_, err := rep.GetManifest(ctx, f.ID, &e.Data)
		if errors.Is(err, manifest.ErrNotFound) {
			continue // deleted since
		}
		if err != nil {
			return nil, fmt.Errorf("restore point %s: %w", e.Labels[tagID], err)
		}
		out = append(out, e)
	}
	return out, nil
}

// group combines manifests into restore points. The error holds what is not a restore point.
func group(entries []entry) ([]*stored, error) {
	slices.SortFunc(entries, func(a, b entry) int { return b.ModTime.Compare(a.ModTime) })
	var out []*stored
	var bad []error
	byID := map[string]*stored{}
	for _, e := range entries {
		id := e.Labels[tagID]
		m := &snapshot.Manifest{}
		switch err := json.Unmarshal(e.Data, m); {
		case err != nil:
			bad = append(bad, fmt.Errorf("restore point %s: %w: %w", id, ErrCorrupt, err))
			continue
		case m.IncompleteReason != "":
			continue
		case id == "":
			bad = append(bad, fmt.Errorf("%w: kopia snapshot %s has the tag varve and not the tag varve-id", ErrCorrupt, e.ID))
			continue
		}
		m.ID = e.ID
		if p := byID[id]; p != nil {
			p.all = append(p.all, e.ID)
			p.manifest.UpdatePins(m.Pins, nil)
			continue
		}
		byID[id] = &stored{id: id, manifest: m, all: []manifest.ID{e.ID}}
		out = append(out, byID[id])
	}
	return out, errors.Join(bad...)
}

// writable fails if the repository is not the one that was opened, or if its manifests are damaged.
func (r *Repository) writable(ctx context.Context) error {
	if err := r.notReplaced(ctx); err != nil {
		return err
	}
	return r.manifestsWhole(ctx)
}

// writableNow is writable, after a refresh that shows what others have stored and deleted.
func (r *Repository) writableNow(ctx context.Context) error {
	if err := r.notReplaced(ctx); err != nil {
		return err
	}
	if err := r.rep.Refresh(ctx); err != nil {
		return fmt.Errorf("look for what others have stored: %w", err)
	}
	return r.manifestsWhole(ctx)
}

// manifestsWhole fails with ErrCorrupt if manifests are damaged. kopia can then neither add nor delete one, and does not say why.
func (r *Repository) manifestsWhole(ctx context.Context) error {
	_, err := findManifests(ctx, r.rep, map[string]string{manifest.TypeLabelKey: snapshot.ManifestType})
	if err == nil {
		return nil
	}
	if _, damage := r.salvage(ctx, nil, ""); errors.Is(damage, ErrCorrupt) {
		return fmt.Errorf("nothing can be changed until the repository is repaired: %w", damage)
	}
	return fmt.Errorf("read the manifests: %w", err)
}

// entries is a content with manifests as kopia stores it: gzipped JSON.
type entries struct {
	Entries []entry `json:"entries"`
}

type entry struct {
	ID      manifest.ID       `json:"id"`
	Labels  map[string]string `json:"labels"`
	ModTime time.Time         `json:"modified"`
	Deleted bool              `json:"deleted"`
	Data    json.RawMessage   `json:"data"`
}

// salvage reads every manifest that can be read. A restore point whose deletion is in a damaged content comes back, which is the
// lesser evil.
func (r *Repository) salvage(ctx context.Context, source *Source, id string) ([]*stored, error) {
	latest := map[manifest.ID]entry{}
	var bad []error
	options := content.IterateOptions{Range: index.PrefixRange(manifest.ContentPrefix)}
	err := r.rep.ContentReader().IterateContents(ctx, options, func(info content.Info) error {
		list, err := r.entries(ctx, info.ContentID)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, ErrCorrupt):
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
	var found []entry
	for _, e := range latest {
		if !e.Deleted && e.Labels[manifest.TypeLabelKey] == snapshot.ManifestType && e.Labels[tagFormat] == formatTag &&
			(id == "" || e.Labels[tagID] == id) && (source == nil || e.of(source)) {
			found = append(found, e)
		}
	}
	out, err := group(found)
	return out, errors.Join(append(bad, err)...)
}

func (e *entry) of(s *Source) bool {
	return e.Labels[snapshot.HostnameLabel] == s.Host && e.Labels[snapshot.UsernameLabel] == s.User && e.Labels[snapshot.PathLabel] == s.Path
}

func (r *Repository) entries(ctx context.Context, id content.ID) ([]entry, error) {
	data, err := r.reader().GetContent(ctx, id)
	if err != nil {
		return nil, readError(fmt.Sprintf("read manifests %s", id), err)
	}
	unpacked, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("%w: manifests %s: %w", ErrCorrupt, id, err)
	}
	plain, err := io.ReadAll(unpacked)
	if err != nil {
		return nil, fmt.Errorf("%w: manifests %s: %w", ErrCorrupt, id, err)
	}
	var e entries
	if err := json.Unmarshal(plain, &e); err != nil {
		return nil, fmt.Errorf("%w: manifests %s: %w", ErrCorrupt, id, err)
	}
	return e.Entries, nil
}
