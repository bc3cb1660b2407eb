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
	// previous is the disk as the restore point previousID has it; nil: it is the first.
	previous   *Disk
	previousID string
	// full says why everything is read; empty: what did not change is taken over from previous.
	full FullReason
}

func (p *diskPlan) incremental() bool { return p.full == "" }

// planDisk decides. Any doubt about the parent means that everything is read.
func planDisk(d *DiskSource, parent *RestorePoint, asked bool, blockBytes int64) (diskPlan, error) {
	var previous *Disk
	if parent != nil && !asked {
		if i := slices.IndexFunc(parent.Disks, func(o Disk) bool { return o.Name == d.Name }); i >= 0 {
			previous = &parent.Disks[i]
			// A history keeps its block size: full or not, what did not change is found again.
			blockBytes = previous.BlockBytes
		}
	}
	g, err := newGeometry(d.Bytes, blockBytes)
	if err != nil {
		return diskPlan{}, err
	}
	plan := diskPlan{geometry: g, previous: previous, full: whyFull(d, previous, asked)}
	if previous != nil {
		plan.previousID = parent.ID
	}
	return plan, nil
}

// whyFull says why a disk cannot be an incremental of previous, which is nil if there is none; empty: it can.
func whyFull(d *DiskSource, previous *Disk, asked bool) FullReason {
	switch {
	case asked:
		return FullAsked
	case previous == nil:
		return FullNoParent
	case d.Identity != previous.Identity:
		return FullOtherIdentity
	case d.Changes == nil:
		return FullNoChanges
	case d.Changes.Since == "" || d.Changes.Since != previous.Change:
		return FullOtherBase
	case previous.Object == object.EmptyID:
		return FullParentDamaged
	}
	return ""
}
