package repository

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/kopia/kopia/repo/object"
)

// findParent is the restore point to start from, or nil for ParentNone and when there is none.
func (r *Repository) findParent(ctx context.Context, q *Request) (*RestorePoint, error) {
	if q.Parent == ParentNone {
		return nil, nil
	}
	points, listErr := r.List(ctx, &q.Source)
	if q.Parent != ParentAuto {
		i := slices.IndexFunc(points, func(p *RestorePoint) bool { return p.ID == q.Parent })
		if i < 0 {
			return nil, fmt.Errorf("parent %s of %s: %w", q.Parent, q.Source, cmp.Or(listErr, ErrNotFound))
		}
		return points[i], nil
	}
	// The latest that has a disk whose changes are counted from it, or else the latest: the plan says why it is not used.
	for _, p := range slices.Backward(points) {
		if slices.ContainsFunc(q.Disks, func(d DiskSource) bool { return d.follows(p) }) {
			return p, nil
		}
	}
	if len(points) == 0 {
		return nil, nil
	}
	return points[len(points)-1], nil
}

// follows says whether the disk's changes are counted from p.
func (d *DiskSource) follows(p *RestorePoint) bool {
	if d.Changes == nil {
		return false
	}
	return slices.ContainsFunc(p.Disks, func(o Disk) bool { return o.Name == d.Name && o.Change == d.Changes.Since })
}

// diskPlan is how a disk is backed up.
type diskPlan struct {
	geometry geometry
	// parent is the disk whose table is the beginning, of the restore point parentID; or nil, and then full says why.
	parent   *Disk
	parentID string
	full     FullReason
}

// planDisk decides. Any doubt about the parent means that everything is read.
func planDisk(d *DiskSource, parent *RestorePoint, asked bool, blockBytes int64) (diskPlan, error) {
	var previous *Disk
	if parent != nil {
		if i := slices.IndexFunc(parent.Disks, func(o Disk) bool { return o.Name == d.Name }); i >= 0 {
			previous = &parent.Disks[i]
		}
	}
	full := func(why FullReason) (diskPlan, error) {
		g, err := newGeometry(d.Bytes, blockBytes)
		return diskPlan{geometry: g, full: why}, err
	}
	switch {
	case asked:
		return full(FullAsked)
	case previous == nil:
		return full(FullNoParent)
	}
	// A history keeps its block size: full or not, what did not change is found again.
	blockBytes = previous.BlockBytes
	switch {
	case d.Identity != previous.Identity:
		return full(FullOtherIdentity)
	case d.Changes == nil:
		return full(FullNoChanges)
	case d.Changes.Since == "" || d.Changes.Since != previous.Change:
		return full(FullOtherBase)
	case previous.Object == object.EmptyID:
		return full(FullParentDamaged)
	}
	g, err := newGeometry(d.Bytes, blockBytes)
	return diskPlan{geometry: g, parent: previous, parentID: parent.ID}, err
}
