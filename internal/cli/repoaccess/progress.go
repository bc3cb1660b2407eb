package repoaccess

import (
	"github.com/varvebackup/varve/internal/cli/progress"
	"github.com/varvebackup/varve/internal/mover"
)

// NewReport returns the report of a job's progress. name says what the job is about.
func NewReport(name string, p mover.Progress) progress.Report {
	out := progress.Report{
		Name: name, Phase: string(p.Phase), Percent: progress.Percent(p.ProcessedBytes, p.TotalBytes), ProcessedBytes: p.ProcessedBytes, TotalBytes: p.TotalBytes,
	}
	if p.Phase == mover.PhaseOpening {
		out.Message = "the disks"
	}
	if b := p.Backup; b != nil {
		out.Stored = &progress.Stored{
			ScannedBytes: b.ScannedBytes, DiskBytes: b.TotalBytes, ChangedBytes: b.ChangedBytes,
			DeduplicatedBytes: b.DeduplicatedBytes, UploadedBytes: b.UploadedBytes,
		}
	}
	return out
}
