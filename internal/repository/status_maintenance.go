package repository

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/kopia/kopia/repo/format"
	"github.com/kopia/kopia/repo/maintenance"

	"github.com/varvebackup/varve/internal/repository/engine"
)

// MaintenanceStatus says when the repository was maintained and when it is due. A zero time is unknown, or means never.
type MaintenanceStatus struct {
	// Owner is the user@host that the kopia CLI lets do maintenance; "varve" lets nobody.
	Owner string `json:"owner,omitempty"`
	// Last is the end of the last task of either mode. LastFull is the end of the last garbage collection.
	Last     time.Time `json:"last,omitzero"`
	LastFull time.Time `json:"lastFull,omitzero"`
	// NextQuick and NextFull are when maintenance is due.
	NextQuick time.Time `json:"nextQuick,omitzero"`
	NextFull  time.Time `json:"nextFull,omitzero"`
	// Failures are the tasks whose last run failed.
	Failures []MaintenanceFailure `json:"failures,omitempty"`
	// Warnings say what needs to be done.
	Warnings []string `json:"warnings,omitempty"`
	// Unknown says why the rest is unknown; "" if it is known.
	Unknown string `json:"unknown,omitempty"`
}

// MaintenanceFailure is a task whose last run failed.
type MaintenanceFailure struct {
	Task  string    `json:"task"`
	Time  time.Time `json:"time"`
	Error string    `json:"error"`
}

// addMaintenance fills in what can be read, because a damaged manifest must not hide everything else.
func (r *Repository) addMaintenance(ctx context.Context, s *Status) error {
	p, err := maintenance.GetParams(ctx, r.conn.Kopia)
	if err == nil {
		var schedule *maintenance.Schedule
		if schedule, err = maintenance.GetSchedule(ctx, r.conn.Kopia); err == nil {
			s.Maintenance = maintenanceStatus(p, schedule)
		}
	}
	if err != nil {
		s.Maintenance.Unknown = err.Error()
		return ctx.Err()
	}
	manifests, err := engine.CountManifestContents(ctx, r.conn.Kopia)
	if err != nil {
		return err
	}
	about, err := r.conn.Kopia.BlobReader().GetMetadata(ctx, format.KopiaRepositoryBlobID)
	if err != nil {
		return fmt.Errorf("look for the format: %w", err)
	}
	s.Maintenance.addWarnings(r.conn.Kopia.Time(), about.Timestamp, manifests)
	return ctx.Err()
}

const (
	// overdueAfter is how late full maintenance, which is due every day, may be before that is a warning.
	overdueAfter = 2 * 24 * time.Hour
	// warnManifests is the number of contents with manifests above which a warning is given: they make every command start more
	// slowly. Each backup adds about three, and maintenance merges them.
	warnManifests = 300
)

// addWarnings notes what needs to be done. created is when the repository was made, or when its password was last changed.
func (m *MaintenanceStatus) addWarnings(now, created time.Time, manifests int) {
	due := m.NextFull
	if due.IsZero() {
		due = created
	}
	if now.Sub(due) > overdueAfter {
		m.Warnings = append(m.Warnings, fmt.Sprintf("full maintenance is overdue since %s: nothing is freed, and object locks are not extended", due.UTC().Format(time.RFC3339)))
	}
	if manifests > warnManifests {
		m.Warnings = append(m.Warnings, fmt.Sprintf("%d contents with manifests are read whenever the repository is opened: quick maintenance merges them, once an hour is good", manifests))
	}
}

func maintenanceStatus(p *maintenance.Params, schedule *maintenance.Schedule) MaintenanceStatus {
	m := MaintenanceStatus{Owner: p.Owner, NextQuick: schedule.NextQuickMaintenanceTime, NextFull: schedule.NextFullMaintenanceTime}
	for task, runs := range schedule.Runs {
		if len(runs) == 0 {
			continue
		}
		last := runs[0] // kopia puts the newest first.
		if last.End.After(m.Last) {
			m.Last = last.End
		}
		if task == maintenance.TaskSnapshotGarbageCollection {
			m.LastFull = last.End
		}
		if !last.Success {
			m.Failures = append(m.Failures, MaintenanceFailure{Task: string(task), Time: last.End, Error: last.Error})
		}
	}
	slices.SortFunc(m.Failures, func(a, b MaintenanceFailure) int { return cmp.Compare(a.Task, b.Task) })
	return m
}
