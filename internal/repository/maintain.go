package repository

import (
	"context"
	"fmt"

	"github.com/kopia/kopia/repo/maintenance"

	"github.com/varvebackup/varve/internal/repository/maintain"
)

// What maintenance and repairs take and report: see package maintain.
type (
	MaintenanceMode    = maintain.Mode
	MaintenanceOptions = maintain.Options
	MaintenanceStep    = maintain.Step
	RepairReport       = maintain.RepairReport
	LostPoint          = maintain.LostPoint
)

const (
	// QuickMaintenance keeps the indexes small, and removes blobs that were never finished. Once an hour is a good interval.
	QuickMaintenance = maintain.Quick
	// FullMaintenance also frees what no restore point refers to, and extends object locks. Once a day is a good interval.
	FullMaintenance = maintain.Full

	// StepCollect finds what no restore point refers to.
	StepCollect = maintain.StepCollect
	// StepCompact merges indexes, rewrites packs that are mostly empty and deletes what is due.
	StepCompact = maintain.StepCompact
)

// Maintain does maintenance. Only one machine does so at a time; errclass.Conflict names the other. From then on the kopia CLI
// leaves maintenance to Varve.
func (r *Repository) Maintain(ctx context.Context, o MaintenanceOptions) error {
	return maintain.Run(ctx, r.conn, o)
}

// DueMaintenance returns the mode of the maintenance that runs next: full if that is due, once a day, and otherwise quick.
func (r *Repository) DueMaintenance(ctx context.Context) (MaintenanceMode, error) {
	schedule, err := maintenance.GetSchedule(ctx, r.conn.Kopia)
	if err != nil {
		return "", fmt.Errorf("read when maintenance is due, from blob kopia.maintenance: %w", err)
	}
	if r.conn.Kopia.Time().Before(schedule.NextFullMaintenanceTime) {
		return QuickMaintenance, nil
	}
	return FullMaintenance, nil
}

// Repair mends what is not data: the format from its copy, indexes from the packs, and manifests from the records of the restore
// points. With dryRun it only looks, and Points lists all lost restore points. No backup may run meanwhile.
func Repair(ctx context.Context, configFile, password string, dryRun bool) (*RepairReport, error) {
	return maintain.Repair(ctx, configFile, password, dryRun)
}
