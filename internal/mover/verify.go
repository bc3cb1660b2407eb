package mover

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"time"

	"github.com/varvebackup/varve/internal/repository"
)

// VerifyRequest asks what is damaged in a repository.
type VerifyRequest struct {
	// Percent of the stored data is read, from 0 to 100: each time another part, drawn at random.
	Percent float64
	// Points selects the restore points whose disks are checked; nil: all. It does not narrow what Percent selects.
	Points func(*repository.RestorePoint) bool
	// CancelGrace is how long a cancelled verification may take to end. When storage does not answer, it takes longer, and
	// Verify returns ErrAbandoned. 0: as long as it takes.
	CancelGrace time.Duration
	// Progress is called from one goroutine at a time, with no lock held. It may be nil.
	Progress func(Progress)

	abandoned func() // for tests: called when a verification that was abandoned has ended; may be nil
}

// Verify looks for damage. Damage is no error, but part of the report. Errors are those of the repository and
// ErrAbandoned.
func Verify(ctx context.Context, r *repository.Repository, q VerifyRequest) (*repository.Report, error) {
	return abandonAfter(ctx, q.CancelGrace, q.abandoned, func() (*repository.Report, error) { return q.runVerify(ctx, r) })
}

func (q *VerifyRequest) runVerify(ctx context.Context, r *repository.Repository) (*repository.Report, error) {
	var sample [8]byte
	_, _ = rand.Read(sample[:]) // it never fails
	o := repository.VerifyOptions{Percent: q.Percent, Sample: binary.NativeEndian.Uint64(sample[:]), Points: q.Points}
	var total int64
	if q.Percent > 0 {
		var err error
		if _, total, err = r.Contents(ctx, q.Percent, o.Sample); err != nil {
			return nil, err
		}
	}
	if q.Progress != nil {
		o.Progress = func(_, bytes int64) {
			q.Progress(Progress{Phase: PhaseReading, ProcessedBytes: bytes, TotalBytes: total})
		}
		o.Looked = func(bytes, of int64) {
			q.Progress(Progress{Phase: PhaseChecking, ProcessedBytes: bytes, TotalBytes: of})
		}
	}
	report, err := r.Verify(ctx, o)
	if err == nil {
		err = ctx.Err() // The last report may have made the caller cancel.
	}
	if err != nil {
		return nil, err
	}
	return report, nil
}
