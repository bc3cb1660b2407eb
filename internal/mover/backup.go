package mover

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository"
)

// BackupRequest asks for a restore point.
type BackupRequest struct {
	// ID is the ID of the future restore point, 32 hexadecimal digits in lower case; "": a new one. If a restore point
	// of the history already has it, that one is returned, and no source is touched. So a backup whose outcome is unknown
	// can be repeated.
	ID string
	// History says whose disks these are.
	History repository.Source
	Sources []Source
	// Group and Labels are those of repository.Request.
	Group  string
	Labels map[string]string
	// Definition is that of repository.Request.
	Definition []byte
	// Track manages a dirty bitmap in each qcow2 image among the sources, whose Checkpoint and Options.Bitmap it sets.
	// The next backup with Track reads only what the bitmap has. No guest may have the images open.
	Track bool
	// Parent, BlockBytes, Compression and Workers are those of repository.Request.
	Parent      string
	BlockBytes  int64
	Compression string
	Workers     int
	// BlockBytesFor returns BlockBytes for the size of the largest disk, once that is known; nil: BlockBytes counts.
	BlockBytesFor func(diskBytes int64) int64
	// FlushEvery is that of repository.Request: what a death of this process may cost.
	FlushEvery time.Duration
	// ReadLimit bounds how fast the sources are read; nil: as fast as possible.
	ReadLimit *RateLimit
	// CancelGrace is how long a cancelled backup may take to store what it has read. When a source does not answer, or
	// storage not even the end of a request, it takes longer, and Backup returns ErrAbandoned. 0: as long as it takes,
	// half a minute and more.
	CancelGrace time.Duration
	// Progress is called from one goroutine at a time, with no lock held. It may be nil.
	Progress func(Progress)
	// Warn is called with what does not fail the backup but costs something, such as a disk that is read as a whole
	// because its bitmap is unusable. It may be nil.
	Warn func(error)

	abandoned func() // for tests: called when a backup that was abandoned has ended; may be nil
}

// keepTimeout is the repository's KeepTimeout within a grace: closing a source takes some time as well.
func keepTimeout(grace time.Duration) time.Duration { return grace * 3 / 4 }

// Backup reads the sources and makes a restore point of them. Errors are those of repository.Repository.Backup,
// *OpenError, *MissingBitmapError, *BitmapError and ErrAbandoned. A failed backup stores what it has read, so that the
// next one need not store it again.
func Backup(ctx context.Context, r *repository.Repository, q BackupRequest) (*repository.RestorePoint, error) {
	q = q.withDefaults()
	return abandonAfter(ctx, q.CancelGrace, q.abandoned, func() (*repository.RestorePoint, error) { return q.runBackup(ctx, r) })
}

func (q *BackupRequest) runBackup(ctx context.Context, r *repository.Repository) (*repository.RestorePoint, error) {
	if existing, err := q.existingPoint(ctx, r); existing != nil || err != nil {
		return existing, err
	}
	q.Progress(Progress{Phase: PhaseOpening})
	var tracking *imageTracking
	if q.Track {
		var err error
		if tracking, err = startImageTracking(ctx, r, q.History, q.Parent, q.Sources); err != nil {
			return nil, err
		}
		if tracking.unusable != nil {
			q.Warn(tracking.unusable)
		}
	}
	point, err := q.storeSources(ctx, r)
	if err != nil {
		return nil, err
	}
	if tracking != nil {
		if err := tracking.removeOldBitmaps(ctx); err != nil {
			q.Warn(err)
		}
	}
	return point, nil
}

func (q *BackupRequest) withDefaults() BackupRequest {
	out := *q
	if out.Parent == "" {
		out.Parent = repository.ParentAuto
	}
	if out.Progress == nil {
		out.Progress = func(Progress) {}
	}
	if out.Warn == nil {
		out.Warn = func(error) {}
	}
	out.Sources = append([]Source{}, q.Sources...) // Track changes them.
	return out
}

// existingPoint returns the restore point that has the requested ID, or nil if there is none. The repository would find it
// too, but only after the sources were opened, and given new bitmaps.
func (q *BackupRequest) existingPoint(ctx context.Context, r *repository.Repository) (*repository.RestorePoint, error) {
	if q.ID == "" {
		return nil, nil //nolint:nilnil // as documented
	}
	p, err := r.Get(ctx, q.ID)
	switch {
	case errors.Is(err, errclass.NotFound):
		return nil, nil //nolint:nilnil // as documented
	case err != nil:
		return nil, err
	case p.Source != q.History:
		return nil, fmt.Errorf("%w: restore point %s is of %s and not of %s", errclass.Conflict, q.ID, p.Source, q.History)
	}
	return p, nil
}

// storeSources opens the sources and has the repository make a restore point of them.
func (q *BackupRequest) storeSources(ctx context.Context, r *repository.Repository) (*repository.RestorePoint, error) {
	opened, err := openSources(ctx, q.Sources)
	if err != nil {
		return nil, err
	}
	if q.ReadLimit != nil {
		for i := range opened.disks {
			opened.disks[i].Reader = &limitedReader{Reader: opened.disks[i].Reader, limit: q.ReadLimit}
		}
	}
	blockBytes := q.BlockBytes
	if q.BlockBytesFor != nil {
		var largest int64
		for _, d := range opened.disks {
			largest = max(largest, d.Bytes)
		}
		blockBytes = q.BlockBytesFor(largest)
	}
	point, err := r.Backup(ctx, repository.Request{
		ID: q.ID, Source: q.History, Group: q.Group, Labels: q.Labels, Definition: q.Definition, Disks: opened.disks,
		Parent: q.Parent, BlockBytes: blockBytes, Compression: q.Compression, Workers: q.Workers,
		FlushEvery: q.FlushEvery, KeepTimeout: keepTimeout(q.CancelGrace), Check: opened.checkAll,
		Progress: func(p repository.Progress) {
			q.Progress(Progress{Phase: PhaseStoring, ProcessedBytes: p.ReadBytes, TotalBytes: p.PlannedBytes, Backup: &p})
		},
	})
	return point, errors.Join(err, opened.Close())
}
