package repository

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/content/index"
	"github.com/kopia/kopia/repo/manifest"
	"github.com/kopia/kopia/snapshot"
)

// snapshots are the kopia snapshots that are restore points, of a source or of all for nil. kopia's own manager gives up when one content
// with manifests is damaged, and then nothing could be restored any more: in that case they are read one by one, and the
// damage is in the error.
func (r *Repository) snapshots(ctx context.Context, source *Source) ([]*snapshot.Manifest, error) {
	var info *snapshot.SourceInfo
	if source != nil {
		si := source.info()
		info = &si
	}
	ids, err := snapshot.ListSnapshotManifests(ctx, r.rep, info, map[string]string{tagFormat: "1"})
	if err != nil {
		return r.salvage(ctx, source)
	}
	var out []*snapshot.Manifest
	for _, id := range ids {
		m, err := snapshot.LoadSnapshot(ctx, r.rep, id)
		if errors.Is(err, snapshot.ErrSnapshotNotFound) {
			continue // deleted since
		}
		if err != nil {
			return nil, fmt.Errorf("restore point %s: %w", id, err)
		}
		if m.IncompleteReason == "" {
			out = append(out, m)
		}
	}
	return out, nil
}

// entries is a content with manifests as kopia stores it: gzip over JSON.
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

// salvage reads every manifest that can be read. A restore point whose deletion is in a damaged content comes back: that is the
// better mistake.
func (r *Repository) salvage(ctx context.Context, source *Source) ([]*snapshot.Manifest, error) {
	latest := map[manifest.ID]entry{}
	var bad []error
	options := content.IterateOptions{Range: index.PrefixRange(manifest.ContentPrefix)}
	err := r.rep.ContentReader().IterateContents(ctx, options, func(info content.Info) error {
		list, err := r.entries(ctx, info.ContentID)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			bad = append(bad, err)
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
	var out []*snapshot.Manifest
	for id, e := range latest {
		if e.Deleted || e.Labels[manifest.TypeLabelKey] != snapshot.ManifestType || e.Labels[tagFormat] == "" {
			continue
		}
		m := &snapshot.Manifest{}
		if err := json.Unmarshal(e.Data, m); err != nil {
			bad = append(bad, fmt.Errorf("restore point %s: %w: %w", id, ErrCorrupt, err))
			continue
		}
		m.ID = id
		if m.IncompleteReason == "" && (source == nil || m.Source == source.info()) {
			out = append(out, m)
		}
	}
	return out, errors.Join(bad...)
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
