package mover

import (
	"context"
	"crypto/tls"
	"errors"
	"sync"
	"time"

	"github.com/varvebackup/varve/internal/disk"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/reporter"
	"github.com/varvebackup/varve/internal/repository"
)

// Destination is where a restore writes a disk.
type Destination struct {
	// Location is the path of a file or block device, or an NBD URI.
	Location string
	// Format, Overwrite, Larger and TLS are those of disk.TargetOptions.
	Format    disk.Format
	Overwrite bool
	Larger    bool
	TLS       *tls.Config
	// Identity identifies a device or an NBD export, such as by the UID of a claim, and must never be given to another
	// one; "": as far as the system tells, which is nothing for an export. JournalPath is where the journal is kept; "":
	// beside a file, and nowhere for the others.
	Identity    string
	JournalPath string
	// SkipEqual reads the destination first, and writes only what differs. It pays if the destination has most of the
	// disk, or shares what it has with others.
	SkipEqual bool

	wrap func(disk.Target) disk.Target // for tests: returns what takes the place of the target that was opened; may be nil
}

// RestoreRequest asks to write a disk of a restore point.
type RestoreRequest struct {
	Disk        repository.Disk
	Destination Destination
	// Workers fetch and write regions in parallel; 0: as many as the repository finds good.
	Workers int
	// WriteLimit bounds how fast the destination is written, and with SkipEqual how fast it is compared; nil: as fast as
	// possible.
	WriteLimit *RateLimit
	// CancelGrace is how long a cancelled restore may take to note what it has written. When storage or the destination
	// does not answer, it takes longer, and Restore returns ErrAbandoned. 0: as long as it takes.
	CancelGrace time.Duration
	// Progress is called from one goroutine at a time, with no lock held. Nothing is written before it has returned for
	// the first time. It may be nil.
	Progress func(Progress)

	abandoned func() // for tests: called when a restore that was abandoned has ended; may be nil
}

// RestoreResult is what a restore did.
type RestoreResult struct {
	// ResumedBytes of the disk were already there, from an earlier restore that was interrupted.
	ResumedBytes int64
	// WrittenBytes differed from what the destination had and EqualBytes did not, if Destination.SkipEqual is set. See
	// disk.Comparison for what counts.
	WrittenBytes, EqualBytes int64
}

// Restore writes a disk of a restore point to its destination, and keeps a journal so that the same request resumes
// after an interruption. Use it under a lease (see WithLease). Errors are those of the repository and of package disk,
// *OpenError, *IncompleteError and ErrAbandoned.
func Restore(ctx context.Context, r *repository.Repository, q RestoreRequest) (RestoreResult, error) {
	return abandonAfter(ctx, q.CancelGrace, q.abandoned, func() (RestoreResult, error) { return q.runRestore(ctx, r) })
}

func (q *RestoreRequest) runRestore(ctx context.Context, r *repository.Repository) (RestoreResult, error) {
	var result RestoreResult
	image, err := r.Image(ctx, q.Disk)
	if err != nil {
		return result, err
	}
	total, err := image.DataBytes(ctx, nil)
	if err != nil {
		return result, err
	}
	journal, err := disk.NewJournal(disk.JournalOptions{
		Path: q.Destination.JournalPath, Token: q.Disk.Digest, Target: q.Destination.Identity, RegionBytes: image.RegionBytes(),
	})
	if err != nil {
		return result, err
	}
	d := &q.Destination
	var compare *disk.Comparison
	if d.SkipEqual {
		compare = &disk.Comparison{}
	}
	target, err := disk.OpenTarget(ctx, d.Location, q.Disk.Bytes, disk.TargetOptions{
		Format: d.Format, Overwrite: d.Overwrite, Larger: d.Larger, DataBytes: total, Journal: journal, TLS: d.TLS,
		Compare: compare,
	})
	if err != nil {
		return result, &OpenError{Err: err}
	}
	if d.wrap != nil {
		target = d.wrap(target)
	}
	if q.WriteLimit != nil {
		target = &limitedTarget{Target: target, limit: q.WriteLimit}
	}
	result.ResumedBytes = journal.DoneBytes()
	if err := q.writeDisk(ctx, image, target, journal, total); err != nil {
		return result, q.keepJournal(ctx, target, journal, err)
	}
	if compare != nil {
		result.WrittenBytes, result.EqualBytes = compare.WrittenBytes(), compare.EqualBytes()
	}
	if err := target.Close(); err != nil {
		return result, err
	}
	return result, journal.Remove()
}

// keepJournal notes what a failed restore has written, and returns the error for the failure.
func (q *RestoreRequest) keepJournal(ctx context.Context, target disk.Target, journal *disk.Journal, failure error) error {
	kept := journal.Save(context.WithoutCancel(ctx), target)
	if errors.Is(failure, errclass.ErrTargetFull) && errors.Is(kept, errclass.ErrTargetFull) {
		kept = nil // What the journal had before counts.
	}
	closed := target.Close()
	if kept == nil && closed == nil {
		identified := q.Destination.Identity != "" || !disk.IsURI(q.Destination.Location)
		return &IncompleteError{Resumable: journal.Kept() && identified, Err: failure}
	}
	return errors.Join(failure, kept, closed)
}

// writeDisk writes what the journal does not have yet. total is how much data the disk has.
func (q *RestoreRequest) writeDisk(ctx context.Context, image *repository.Image, target disk.Target, journal *disk.Journal, total int64) error {
	left := total
	if journal.DoneBytes() > 0 {
		var err error
		if left, err = image.DataBytes(ctx, journal.Done); err != nil {
			return err
		}
	}
	progress := Progress{Phase: PhaseWriting, ProcessedBytes: total - left, TotalBytes: total}
	if q.Progress != nil {
		q.Progress(progress)
	}
	reports := reporter.New(q.Progress)
	defer reports.Stop()
	var mu sync.Mutex // so that reports are in order
	return image.Restore(ctx, target, repository.RestoreOptions{
		Workers: q.Workers, Done: journal.Done,
		Wrote: func(bytes int64) {
			mu.Lock()
			defer mu.Unlock()
			progress.ProcessedBytes += bytes
			reports.Report(progress)
		},
		Finished: func(region int, _ extent.Extent) { journal.Finished(ctx, target, region) },
	})
}
