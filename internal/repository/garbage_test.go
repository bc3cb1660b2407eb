package repository

import (
	"context"
	"fmt"

	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/manifest"
	"github.com/kopia/kopia/repo/object"
	"github.com/kopia/kopia/snapshot"

	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/internal/repository/table"
)

// unreferenced returns the contents of a repository that neither a restore point nor a lease refers to.
func unreferenced(ctx context.Context, r *Repository) ([]string, error) {
	ids, err := snapshot.ListSnapshotManifests(ctx, r.conn.Kopia, nil, nil)
	if err != nil {
		return nil, err
	}
	snapshots, err := snapshot.LoadSnapshots(ctx, r.conn.Kopia, ids)
	if err != nil {
		return nil, err
	}
	u := &uses{r: r, objects: map[object.ID]bool{}, contents: map[content.ID]bool{}}
	for _, m := range snapshots {
		if err := u.snapshot(ctx, m); err != nil {
			return nil, fmt.Errorf("snapshot %s: %w", m.ID, err)
		}
	}
	var out []string
	err = r.conn.Kopia.ContentReader().IterateContents(ctx, content.IterateOptions{}, func(info content.Info) error {
		if info.ContentID.Prefix() != manifest.ContentPrefix && !u.contents[info.ContentID] {
			out = append(out, info.ContentID.String())
		}
		return nil
	})
	return out, err
}

// uses is what was found to be referenced.
type uses struct {
	r        *Repository
	objects  map[object.ID]bool
	contents map[content.ID]bool
}

func (u *uses) snapshot(ctx context.Context, m *snapshot.Manifest) error {
	root := m.RootObjectID()
	if err := u.object(ctx, root); err != nil {
		return err
	}
	if m.Tags[engine.TagSession] != "" {
		return u.session(ctx, root)
	}
	var dir snapshot.DirManifest
	if err := engine.ReadJSON(ctx, u.r.conn.Reader(), root, &dir); err != nil {
		return err
	}
	p, err := engine.ReadPointFile(ctx, u.r.conn.Reader(), m.RootEntry)
	if err != nil {
		return err
	}
	for _, e := range dir.Entries {
		if e.Name == engine.PointEntry || p.Definition != nil && e.ObjectID == p.Definition.Object {
			if err := u.object(ctx, e.ObjectID); err != nil {
				return err
			}
		}
	}
	for _, d := range p.Disks {
		if err := u.disk(ctx, d); err != nil {
			return fmt.Errorf("disk %s: %w", d.Name, err)
		}
	}
	return nil
}

// session marks what a session manifest names.
func (u *uses) session(ctx context.Context, root object.ID) error {
	var dir snapshot.DirManifest
	if err := engine.ReadJSON(ctx, u.r.conn.Reader(), root, &dir); err != nil {
		return err
	}
	for _, e := range dir.Entries {
		if err := u.object(ctx, e.ObjectID); err != nil {
			return err
		}
		if e.Type == snapshot.EntryTypeDirectory {
			if err := u.session(ctx, e.ObjectID); err != nil {
				return err
			}
		}
	}
	return nil
}

// object marks an object that is read as a whole.
func (u *uses) object(ctx context.Context, id object.ID) error {
	contents, err := u.r.conn.Kopia.VerifyObject(ctx, id)
	for _, c := range contents {
		u.contents[c] = true
	}
	return err
}

func (u *uses) disk(ctx context.Context, d Disk) error {
	g, err := table.NewGeometry(d.Bytes, d.BlockBytes)
	if err != nil {
		return err
	}
	list, ok := d.Object.IndexObjectID()
	if !ok {
		return fmt.Errorf("%s is not a table", d.Object)
	}
	if err := u.object(ctx, list); err != nil {
		return err
	}
	regions, err := table.ReadList(ctx, u.r.conn.Reader(), g, d.Object)
	if err != nil {
		return err
	}
	for i, region := range regions {
		if u.objects[region.Object] {
			continue
		}
		u.objects[region.Object] = true
		inner, _ := region.Object.IndexObjectID()
		if err := u.object(ctx, inner); err != nil {
			return err
		}
		blocks, err := table.ReadRegion(ctx, u.r.conn.Reader(), g, i, region.Object)
		if err != nil {
			return err
		}
		for _, b := range blocks {
			if c, _, ok := b.Object.ContentID(); ok {
				u.contents[c] = true
			}
		}
	}
	return nil
}
