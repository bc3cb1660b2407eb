package mover

import "github.com/varvebackup/varve/internal/repository"

// Phase is a part of a job, in the words that people see.
type Phase string

// The phases.
const (
	// PhaseOpening and PhaseStoring are those of a backup.
	PhaseOpening Phase = "Opening"
	PhaseStoring Phase = "Storing"
	// PhaseWriting is that of a restore.
	PhaseWriting Phase = "Writing"
	// PhaseReading and PhaseChecking are those of a verification: of the data, and of the blocks' places.
	PhaseReading  Phase = "Reading"
	PhaseChecking Phase = "Checking"
)

// Progress is how far a job is.
type Progress struct {
	Phase Phase
	// ProcessedBytes of TotalBytes are done. Both are 0 in a phase that counts nothing.
	ProcessedBytes, TotalBytes int64
	// Backup has more about PhaseStoring; nil in every other phase.
	Backup *repository.Progress
}
