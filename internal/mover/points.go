package mover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository"
)

// minPrefixBytes is how much of an ID must be given.
const minPrefixBytes = 4

// ErrPrefix is of class Invalid: the beginning of an ID is too short, or restore points share it.
var ErrPrefix = errclass.New(errclass.Invalid, "invalid: the beginning of an ID")

// Points are restore points of a repository.
type Points struct {
	// All are the restore points that can be read, oldest first.
	All []*repository.RestorePoint
	// Unreadable is an error that names the restore points that cannot be read, or nil.
	Unreadable error
}

// NewPoints returns points, sorted.
func NewPoints(points []*repository.RestorePoint, unreadable error) *Points {
	slices.SortStableFunc(points, func(a, b *repository.RestorePoint) int {
		return cmp.Or(a.Time.Compare(b.Time), a.Source.Compare(b.Source))
	})
	return &Points{All: points, Unreadable: unreadable}
}

// ListPoints lists the restore points of a repository. Unreadable ones are no error.
func ListPoints(ctx context.Context, r *repository.Repository) (*Points, error) {
	return ListSelectedPoints(ctx, r, repository.Filter{})
}

// ListSelectedPoints lists the restore points that a filter selects. Unreadable ones are no error.
func ListSelectedPoints(ctx context.Context, r *repository.Repository, f repository.Filter) (*Points, error) {
	points, err := r.ListSelected(ctx, f)
	if err != nil && !errors.Is(err, errclass.Corrupt) {
		return nil, err
	}
	return NewPoints(points, err), nil
}

// ListPointsByID lists the restore points whose IDs begin with one of the prefixes. Unreadable ones are no error. A
// prefix that is too short is ErrPrefix.
func ListPointsByID(ctx context.Context, r *repository.Repository, prefixes ...string) (*Points, error) {
	for _, prefix := range prefixes {
		if err := checkPrefix(prefix); err != nil {
			return nil, err
		}
	}
	points, err := r.ListMatching(ctx, prefixes...)
	if err != nil && !errors.Is(err, errclass.Corrupt) {
		return nil, err
	}
	return NewPoints(points, err), nil
}

func checkPrefix(prefix string) error {
	if len(prefix) < minPrefixBytes {
		return errclass.Errorf(ErrPrefix, "restore point %q: give at least %d characters of its ID", prefix, minPrefixBytes)
	}
	return nil
}

// Find returns the restore point whose ID begins with prefix. If there is none, but some restore points are unreadable,
// it may be one of them, and the error is theirs.
func (p *Points) Find(prefix string) (*repository.RestorePoint, error) {
	if err := checkPrefix(prefix); err != nil {
		return nil, err
	}
	var found []*repository.RestorePoint
	for _, point := range p.All {
		if strings.HasPrefix(point.ID, prefix) {
			found = append(found, point)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return nil, fmt.Errorf("restore point %s: %w", prefix, cmp.Or[error](p.Unreadable, errclass.NotFound))
	}
	return nil, errclass.Errorf(ErrPrefix, "restore point %s: the IDs of %d begin like this: %s", prefix, len(found), strings.Join(PointIDs(found), ", "))
}

// FindAll returns the restore points that prefixes name, without duplicates.
func (p *Points) FindAll(prefixes []string) ([]*repository.RestorePoint, error) {
	var out []*repository.RestorePoint
	var failures []error
	for _, prefix := range prefixes {
		point, err := p.Find(prefix)
		if err != nil {
			failures = append(failures, err)
		} else if !slices.Contains(out, point) {
			out = append(out, point)
		}
	}
	return out, errors.Join(failures...)
}

// Histories returns the restore points of the histories that the filter selects, grouped by history.
func (p *Points) Histories(filter HistoryFilter) [][]*repository.RestorePoint {
	var out [][]*repository.RestorePoint
	index := map[repository.Source]int{}
	for _, point := range p.All {
		if !filter.Selects(point.Source) {
			continue
		}
		i, known := index[point.Source]
		if !known {
			i = len(out)
			index[point.Source] = i
			out = append(out, nil)
		}
		out[i] = append(out[i], point)
	}
	return out
}

// PointIDs returns the IDs of restore points.
func PointIDs(points []*repository.RestorePoint) (ids []string) {
	for _, p := range points {
		ids = append(ids, p.ID)
	}
	return ids
}

// DiskNames returns the names of a restore point's disks.
func DiskNames(p *repository.RestorePoint) (names []string) {
	if p.Files != nil {
		names = append(names, repository.FilesName)
	}
	for i := range p.Disks {
		names = append(names, p.Disks[i].Name)
	}
	return names
}
