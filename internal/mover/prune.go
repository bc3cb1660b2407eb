package mover

import (
	"context"
	"fmt"
	"time"

	"github.com/varvebackup/varve/internal/repository"
	"github.com/varvebackup/varve/internal/retention"
)

// PruneSurvey is what a prune decides on. To prune, call SurveyPrune, then Decide, and delete what RemovedIDs returns.
type PruneSurvey struct {
	// Points are the restore points. If there was a sign of damage, those that the filter does not select are left out.
	Points *Points
	filter HistoryFilter
	// damaged has the names of damaged disks, by the ID of their restore point.
	damaged map[string]map[string]bool
}

// SurveyPrune lists the restore points. If there is a sign of damage, it also checks where the blocks of the selected
// ones are, so that a damaged restore point does not take the place of a good one. progress is called from one goroutine at
// a time, with no lock held. It may be nil.
func SurveyPrune(ctx context.Context, r *repository.Repository, filter HistoryFilter, progress func(Progress)) (*PruneSurvey, error) {
	if progress != nil {
		progress(Progress{Phase: PhaseChecking})
	}
	s := &PruneSurvey{filter: filter}
	doubt, err := r.SignOfDamage(ctx)
	if err != nil {
		return nil, err
	}
	if !doubt {
		s.Points, err = ListPoints(ctx, r)
		return s, err
	}
	selected := func(p *repository.RestorePoint) bool { return filter.Selects(p.Source) }
	report, err := Verify(ctx, r, VerifyRequest{Points: selected, Progress: progress})
	if err != nil {
		return nil, err
	}
	s.Points = NewPoints(report.Points, report.Unlisted)
	s.damaged = damagedDisks(report)
	return s, nil
}

// damagedDisks returns the names of the damaged disks of restore points, by ID.
func damagedDisks(report *repository.Report) map[string]map[string]bool {
	out := map[string]map[string]bool{}
	for _, d := range report.Damage {
		if out[d.Point.ID] == nil {
			out[d.Point.ID] = map[string]bool{}
		}
		out[d.Point.ID][d.Disk] = true
	}
	return out
}

// PrunePolicy says what a prune keeps.
type PrunePolicy struct {
	retention.Policy

	// PerDisk decides on the history of each disk alone: a restore point stays while a rule keeps it for any of its
	// disks. Otherwise the rules look at restore points as a whole.
	PerDisk bool
}

// PruneDecision is the decision about a restore point.
type PruneDecision struct {
	Point *repository.RestorePoint
	Keep  bool
	// Reasons are the rules that keep it; of a disk alone, with the disk's name before them.
	Reasons []string
	Damaged bool
}

// Decide decides on the selected restore points: one history after another, newest first. If it fails, nothing may be
// removed.
func (s *PruneSurvey) Decide(policy PrunePolicy, now time.Time) ([]PruneDecision, error) {
	var out []PruneDecision
	for _, history := range s.Points.Histories(s.filter) {
		decisions, err := policy.decideHistory(now, history, s.damaged)
		if err != nil {
			return nil, fmt.Errorf("history %s: %w", history[0].Source, err)
		}
		out = append(out, decisions...)
	}
	return out, nil
}

// RemovedIDs returns the IDs of the restore points that are not kept.
func RemovedIDs(decisions []PruneDecision) (ids []string) {
	for i := range decisions {
		if !decisions[i].Keep {
			ids = append(ids, decisions[i].Point.ID)
		}
	}
	return ids
}
