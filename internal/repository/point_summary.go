package repository

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/kopia/kopia/repo/object"
	"golang.org/x/sync/errgroup"
)

// pointSummary repeats what varve.json says in the description of the restore point's manifest. Whoever lists restore points
// reads the manifests anyway, and then needs nothing else. It is valid only for the directory Root. A manifest with another root,
// or with another description, is described by its directory.
type pointSummary struct {
	Root object.ID `json:"root"`
	pointFile
}

// summarize returns the description for the manifest of a restore point whose directory is root.
func (p *RestorePoint) summarize(root object.ID) (string, error) {
	data, err := json.Marshal(pointSummary{Root: root, pointFile: p.file()})
	return string(data), err
}

// summary returns what the manifest says about the restore point. ok is false if its directory must be read.
func (s *stored) summary() (f pointFile, ok bool) {
	m := s.manifest
	if m.RootEntry == nil || !strings.HasPrefix(m.Description, "{") {
		return f, false
	}
	var summary pointSummary
	if err := json.Unmarshal([]byte(m.Description), &summary); err != nil || summary.ID != s.id || summary.Root != m.RootEntry.ObjectID {
		return f, false
	}
	return summary.pointFile, summary.check() == nil
}

// readPoint returns a restore point as its manifest describes it, or else as its directory does.
func readPoint(ctx context.Context, cr contentReader, s *stored) (*RestorePoint, error) {
	if f, ok := s.summary(); ok {
		return s.point(f), nil
	}
	f, err := s.readDirectory(ctx, cr)
	if err != nil {
		return nil, err
	}
	return s.point(f), nil
}

// readWholePoint returns a restore point as its directory describes it, which is what kopia reads. The manifest must not
// contradict that.
func readWholePoint(ctx context.Context, cr contentReader, s *stored) (*RestorePoint, error) {
	f, err := s.readDirectory(ctx, cr)
	if err != nil {
		return nil, err
	}
	if about, ok := s.summary(); ok && !reflect.DeepEqual(about, f) {
		return nil, fmt.Errorf("%w: the manifest of restore point %s does not say what its %s does", ErrCorrupt, s.id, pointEntry)
	}
	return s.point(f), nil
}

func (s *stored) point(f pointFile) *RestorePoint {
	m := s.manifest
	return &RestorePoint{
		ID: s.id, Snapshot: string(m.ID), Source: Source{Host: m.Source.Host, User: m.Source.UserName, Path: m.Source.Path},
		Time: f.Time, After: f.After, Disks: f.Disks, Pins: usersPins(m.Pins),
	}
}

// readDirectory reads the entry that describes a restore point in its directory.
func (s *stored) readDirectory(ctx context.Context, cr contentReader) (pointFile, error) {
	f, err := readPointFile(ctx, cr, s.manifest.RootEntry)
	if err == nil && f.ID != s.id {
		err = fmt.Errorf("%w: %s is of restore point %q", ErrCorrupt, pointEntry, f.ID)
	}
	if err != nil {
		return f, fmt.Errorf("restore point %s: %w", s.id, err)
	}
	return f, nil
}

// readPoints reads restore points with read, several in parallel. If some are damaged, the error is ErrCorrupt or ErrInvalid, and
// the others are returned. With any other error none is returned, because what the storage does not answer for may be intact.
func readPoints(ctx context.Context, cr contentReader, all []*stored, read func(context.Context, contentReader, *stored) (*RestorePoint, error)) ([]*RestorePoint, error) {
	points, bad := make([]*RestorePoint, len(all)), make([]error, len(all))
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(DefaultWorkers)
	for i, s := range all {
		group.Go(func() error {
			p, err := read(inner, cr, s)
			if err != nil && !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrInvalid) {
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
