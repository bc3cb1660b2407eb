package mover

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository"
)

// PinnedError refuses to delete a pinned restore point. It is of class Conflict.
type PinnedError struct{ Point *repository.RestorePoint }

func (e *PinnedError) Error() string {
	return fmt.Sprintf("restore point %s is pinned (%s)", e.Point.ID, strings.Join(e.Point.Pins, ", "))
}

func (e *PinnedError) Unwrap() error { return errclass.Conflict }

// FindDeletable returns the restore points that prefixes name, if all of them may be deleted. A restore point that
// cannot be read must be named by its whole ID. One that is lost, because another program has deleted it, is found by a
// prefix. points are those that can be read. A pinned restore point is a *PinnedError.
func FindDeletable(ctx context.Context, r *repository.Repository, points *Points, prefixes []string) ([]*repository.RestorePoint, error) {
	var unlisted []*repository.RestorePoint
	var listed []string
	for _, prefix := range prefixes {
		_, err := points.Find(prefix)
		if !errors.Is(err, errclass.Corrupt) && !errors.Is(err, errclass.NotFound) {
			listed = append(listed, prefix) // it exists, or the prefix is not valid
			continue
		}
		p, err := findUnlisted(ctx, r, prefix)
		if err != nil {
			return nil, err
		}
		if p == nil {
			listed = append(listed, prefix)
			continue
		}
		unlisted = append(unlisted, p)
	}
	found, err := points.FindAll(listed)
	if err != nil {
		return nil, err
	}
	for _, p := range found {
		if p.Pinned() {
			return nil, &PinnedError{Point: p}
		}
	}
	return append(found, unlisted...), nil
}

// findUnlisted returns the restore point that no list has because it cannot be read or is lost, or nil.
func findUnlisted(ctx context.Context, r *repository.Repository, prefix string) (*repository.RestorePoint, error) {
	_, err := r.Get(ctx, prefix)
	switch {
	case errors.Is(err, errclass.Corrupt):
		return &repository.RestorePoint{ID: prefix}, nil
	case err != nil && !errors.Is(err, errclass.NotFound):
		return nil, err
	}
	lost, err := r.Lost(ctx)
	if err != nil && !errors.Is(err, errclass.Corrupt) {
		return nil, err
	}
	p, err := NewPoints(lost, nil).Find(prefix)
	if errors.Is(err, errclass.NotFound) {
		return nil, nil //nolint:nilnil // as documented
	}
	return p, err
}
