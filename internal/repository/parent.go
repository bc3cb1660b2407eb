package repository

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kopia/kopia/repo/object"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/internal/repository/table"
)

// history holds the restore points of a source, as far as they can be read.
type history struct {
	// points are in the order in which they were made.
	points []*RestorePoint
	// damage says what cannot be read. damagedAt is when the latest of that was made; zero if nothing is damaged.
	damage    error
	damagedAt time.Time
}

// loadHistory reads all restore points of a source. It fails if the storage fails, because what the storage did not answer for
// may exist.
func (r *Repository) loadHistory(ctx context.Context, source *Source) (*history, error) {
	snapshots, err := r.conn.FindPoints(ctx, source, "")
	if err != nil && !errors.Is(err, errclass.Corrupt) {
		return nil, err
	}
	h := &history{damage: err}
	if err != nil { // Nobody knows how old the damaged ones are.
		h.damagedAt = r.conn.Kopia.Time()
	}
	for _, s := range snapshots {
		p, err := engine.ReadPoint(ctx, r.conn.Reader(), s)
		switch at := s.Manifest.StartTime.ToTime(); {
		case err == nil:
			h.points = append(h.points, p)
		case !errors.Is(err, errclass.Corrupt):
			return nil, err
		default:
			h.damage = errors.Join(h.damage, err)
			if at.After(h.damagedAt) {
				h.damagedAt = at
			}
		}
	}
	SortByMaking(h.points)
	return h, nil
}

// latestTime returns the time by which the latest restore point is ordered, or that of the latest damage if it is later; zero if
// there is neither.
func (h *history) latestTime() time.Time {
	end := h.damagedAt
	for _, p := range h.points {
		if at := p.OrderTime(); at.After(end) {
			end = at
		}
	}
	return end
}

// checkChangeUnused fails with ErrChangeUsed if a restore point of the history already has the Change of one of the disks. An
// incremental that is counted from that name could mean either.
func (h *history) checkChangeUnused(q *Request) error {
	for i := range q.Disks {
		d := &q.Disks[i]
		for _, p := range h.points {
			if d.Change != "" && slices.ContainsFunc(p.Disks, func(o Disk) bool { return o.Name == d.Name && o.Change == d.Change }) {
				return fmt.Errorf("disk %s: %w: %q is the point in time of restore point %s (%s) already", d.Name, ErrChangeUsed, d.Change, p.ID, p.Time.Format(time.RFC3339))
			}
		}
	}
	return nil
}

// latestWithAny returns the latest restore point with any of these disks, or nil.
func (h *history) latestWithAny(disks []DiskSource) *RestorePoint {
	for _, p := range slices.Backward(h.points) {
		if slices.ContainsFunc(disks, func(d DiskSource) bool { return p.HasDisk(d.Name) }) {
			return p
		}
	}
	return nil
}

// findParent returns the restore point to start from. It is nil for ParentNone, and if there is none. doubts says which disks
// must be read as a whole nevertheless, and why.
func (h *history) findParent(q *Request) (parent *RestorePoint, doubts map[string]FullReason, err error) {
	if err := h.checkChangeUnused(q); err != nil {
		return nil, nil, err
	}
	doubts = map[string]FullReason{}
	switch q.Parent {
	case ParentNone:
		for _, d := range q.Disks {
			doubts[d.Name] = FullAsked
		}
		return nil, doubts, nil
	case ParentAuto:
		parent = h.latestWithAny(q.Disks)
	default:
		i := slices.IndexFunc(h.points, func(p *RestorePoint) bool { return p.ID == q.Parent })
		if i < 0 {
			return nil, nil, fmt.Errorf("parent %s of %s: %w", q.Parent, q.Source, cmp.Or[error](h.damage, errclass.NotFound))
		}
		parent = h.points[i]
	}
	for i := range q.Disks {
		d := &q.Disks[i]
		switch {
		case q.Parent == ParentAuto && h.damage != nil && (parent == nil || h.damagedAt.After(parent.OrderTime())):
			doubts[d.Name] = FullParentDamaged // The damaged one may be the latest.
		case isAmbiguous(h.points, d):
			doubts[d.Name] = FullOtherBase
		}
	}
	return parent, doubts, nil
}

// isAmbiguous says whether the disk's changes are counted from a name that several restore points have.
func isAmbiguous(points []*RestorePoint, d *DiskSource) bool {
	if d.Changes == nil {
		return false
	}
	named := 0
	for _, p := range points {
		if slices.ContainsFunc(p.Disks, func(o Disk) bool { return o.Name == d.Name && o.Change == d.Changes.Since }) {
			named++
		}
	}
	return named > 1
}

// diskPlan is how a disk is backed up.
type diskPlan struct {
	geometry table.Geometry
	// previous is the disk as the restore point previousID has it; nil if there is none.
	previous   *Disk
	previousID string
	// full says why everything is read. If it is empty, what did not change is taken over from previous.
	full FullReason
}

func (p *diskPlan) isIncremental() bool { return p.full == "" }

// planDisk decides how to back up a disk. If there is any doubt about the parent, everything is read. doubt is one that is
// already known, or empty.
func planDisk(d *DiskSource, parent *RestorePoint, doubt FullReason, blockBytes int64) (diskPlan, error) {
	var previous *Disk
	if parent != nil && doubt != FullAsked {
		if i := slices.IndexFunc(parent.Disks, func(o Disk) bool { return o.Name == d.Name }); i >= 0 {
			previous = &parent.Disks[i]
			// A history keeps its block size. So even a full backup finds again what did not change.
			blockBytes = previous.BlockBytes
		}
	}
	g, err := table.NewGeometry(d.Bytes, blockBytes)
	if err != nil {
		return diskPlan{}, err
	}
	plan := diskPlan{geometry: g, previous: previous, full: whyFull(d, previous, doubt)}
	if previous != nil {
		plan.previousID = parent.ID
	}
	return plan, nil
}

// whyFull says why a disk cannot be an incremental of previous, which is nil if there is none. Empty means that it can.
func whyFull(d *DiskSource, previous *Disk, doubt FullReason) FullReason {
	switch {
	case doubt != "":
		return doubt
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
