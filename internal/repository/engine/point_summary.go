package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/kopia/kopia/repo/object"
	"golang.org/x/sync/errgroup"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/table"
)

// pointSummary repeats what varve.json says in the description of the restore point's manifest. Whoever lists restore points
// reads the manifests anyway, and then needs nothing else. It is valid only for the directory Root. A manifest with another root,
// or with another description, is described by its directory.
type pointSummary struct {
	Root object.ID `json:"root"`
	PointFile
}

// Summarize returns the description for the manifest of a restore point whose directory is root.
func (p *RestorePoint) Summarize(root object.ID) (string, error) {
	data, err := json.Marshal(pointSummary{Root: root, PointFile: p.pointFile()})
	return string(data), err
}

// Summary returns what the manifest says about the restore point. ok is false if its directory must be read.
func (s *StoredPoint) Summary() (f PointFile, ok bool) {
	m := s.Manifest
	if m.RootEntry == nil || !strings.HasPrefix(m.Description, "{") {
		return f, false
	}
	var summary pointSummary
	if err := json.Unmarshal([]byte(m.Description), &summary); err != nil || summary.ID != s.ID || summary.Root != m.RootEntry.ObjectID {
		return f, false
	}
	return summary.PointFile, summary.checkFields() == nil
}

// ReadPoint returns a restore point as its manifest describes it, or else as its directory does.
func ReadPoint(ctx context.Context, cr table.ContentReader, s *StoredPoint) (*RestorePoint, error) {
	if f, ok := s.Summary(); ok {
		return s.Point(f), nil
	}
	f, err := s.readDirectory(ctx, cr)
	if err != nil {
		return nil, err
	}
	return s.Point(f), nil
}

// ReadPointDirectory returns a restore point as its directory describes it, which is what kopia reads. The manifest must not
// contradict that.
func ReadPointDirectory(ctx context.Context, cr table.ContentReader, s *StoredPoint) (*RestorePoint, error) {
	f, err := s.readDirectory(ctx, cr)
	if err != nil {
		return nil, err
	}
	if about, ok := s.Summary(); ok && !reflect.DeepEqual(about, f) {
		return nil, fmt.Errorf("%w: the manifest of restore point %s does not say what its %s does", errclass.Corrupt, s.ID, PointEntry)
	}
	return s.Point(f), nil
}

// Point returns the restore point with this description.
func (s *StoredPoint) Point(f PointFile) *RestorePoint {
	m := s.Manifest
	p := &RestorePoint{
		ID: s.ID, Snapshot: string(m.ID), Source: Source{Host: m.Source.Host, User: m.Source.UserName, Path: m.Source.Path},
		Time: f.Time, After: f.After, Disks: f.Disks, Files: f.Files, Definition: f.Definition, Pins: UserPins(m.Pins),
	}
	if p.Files != nil {
		p.Disks = []Disk{} // so that its JSON is a list
	}
	p.ReadTags(m.Tags)
	return p
}

// readDirectory reads the entry that describes a restore point in its directory.
func (s *StoredPoint) readDirectory(ctx context.Context, cr table.ContentReader) (PointFile, error) {
	f, err := ReadPointFile(ctx, cr, s.Manifest.RootEntry)
	if err == nil && f.ID != s.ID {
		err = fmt.Errorf("%w: %s is of restore point %q", errclass.Corrupt, PointEntry, f.ID)
	}
	if err != nil {
		return f, fmt.Errorf("restore point %s: %w", s.ID, err)
	}
	return f, nil
}

// ReadPoints reads restore points with read, several in parallel. If some are damaged, the error is errclass.Corrupt or
// errclass.Invalid, and the others are returned. With any other error none is returned, because what the storage does not answer
// for may be intact.
func ReadPoints(ctx context.Context, cr table.ContentReader, all []*StoredPoint, read func(context.Context, table.ContentReader, *StoredPoint) (*RestorePoint, error)) ([]*RestorePoint, error) {
	points, bad := make([]*RestorePoint, len(all)), make([]error, len(all))
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(table.DefaultWorkers)
	for i, s := range all {
		group.Go(func() error {
			p, err := read(inner, cr, s)
			if err != nil && !errors.Is(err, errclass.Corrupt) && !errors.Is(err, errclass.Invalid) {
				return err
			}
			points[i], bad[i] = p, err
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	out := points[:0]
	for _, p := range points {
		if p != nil {
			out = append(out, p)
		}
	}
	return out, errors.Join(bad...)
}

// UserPins returns the pins of a manifest that are a user's.
func UserPins(pins []string) (out []string) {
	for _, pin := range pins {
		if pin != OwnPin {
			out = append(out, pin)
		}
	}
	return out
}
