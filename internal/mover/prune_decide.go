package mover

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/varvebackup/varve/internal/repository"
	"github.com/varvebackup/varve/internal/retention"
)

// decideHistory returns the decisions on a history, newest restore point first. damaged has the damaged disks.
func (p *PrunePolicy) decideHistory(now time.Time, history []*repository.RestorePoint, damaged map[string]map[string]bool) ([]PruneDecision, error) {
	var points []retention.Point
	byID := map[string]*repository.RestorePoint{}
	history = sortLastMadeFirst(history)
	for _, point := range history {
		byID[point.ID] = point
		points = appendRetentionPoint(points, point, len(damaged[point.ID]) == 0)
	}
	// This is also the order of the result.
	whole, err := retention.Decide(p.Policy, now, points)
	if err != nil {
		return nil, err
	}
	var out []PruneDecision
	for _, d := range whole {
		out = append(out, PruneDecision{Point: byID[d.Point.ID], Keep: d.Keep, Reasons: slices.Clone(d.Reasons), Damaged: !d.Point.Good})
	}
	if p.PerDisk {
		return out, p.decidePerDisk(now, history, damaged, out)
	}
	return out, nil
}

// decidePerDisk replaces the decisions on whole restore points by those on their disks. history begins with the restore
// point that was made last.
func (p *PrunePolicy) decidePerDisk(now time.Time, history []*repository.RestorePoint, damaged map[string]map[string]bool, out []PruneDecision) error {
	index := map[string]int{}
	for i := range out {
		index[out[i].Point.ID] = i
		out[i].Keep, out[i].Reasons = false, nil
	}
	var names []string
	points := map[string][]retention.Point{}
	for _, point := range history {
		for _, name := range DiskNames(point) {
			if points[name] == nil {
				names = append(names, name)
			}
			points[name] = appendRetentionPoint(points[name], point, !damaged[point.ID][name])
		}
	}
	for _, name := range names {
		decisions, err := retention.Decide(p.Policy, now, points[name])
		if err != nil {
			return fmt.Errorf("disk %s: %w", name, err)
		}
		for _, d := range decisions {
			if d.Keep {
				kept := &out[index[d.Point.ID]]
				kept.Keep = true
				kept.Reasons = append(kept.Reasons, name+": "+strings.Join(d.Reasons, " + "))
			}
		}
	}
	return nil
}

// appendRetentionPoint adds what retention needs to know about a restore point, or about a disk in it. points has those
// that were made later.
func appendRetentionPoint(points []retention.Point, p *repository.RestorePoint, good bool) []retention.Point {
	return append(points, retention.Point{ID: p.ID, Time: p.Time, Pinned: p.Pinned(), Good: good, MadeLast: len(points) == 0})
}

// sortLastMadeFirst returns the restore points of a history, beginning with the one that was made last.
func sortLastMadeFirst(history []*repository.RestorePoint) []*repository.RestorePoint {
	out := slices.Clone(history)
	repository.SortByMaking(out)
	slices.Reverse(out)
	return out
}
