package repository

import (
	"fmt"
	"math"
	"time"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/table"
)

// FilesRequest asks for a restore point with the files of a directory: a volume that is mounted, and that nobody writes meanwhile.
type FilesRequest struct {
	// ID is the ID of the future restore point, 32 hexadecimal digits in lower case; "": a new one. If a restore point of the
	// same source already has it, that one is returned and Root is not touched. So a backup whose outcome is unknown can be
	// repeated. It then continues from what the interrupted one has stored.
	ID     string
	Source Source
	// Time is the point in time of the content; zero: when the backup begins.
	Time time.Time
	// Root is the directory whose content is stored, with its own owner, permissions and attributes. It may be empty. Other file
	// systems that are mounted below it are refused with errclass.Invalid.
	Root string
	// Identity distinguishes the volume from another one with the same source, for example a claim's UID. Files of a parent with
	// another identity are not taken over. "" is an identity, too.
	Identity string
	// Group and Labels are those of Request.
	Group  string
	Labels map[string]string
	// Parent is the ID of the restore point to start from, or ParentAuto or ParentNone; "": ParentAuto. A file that is as it was in
	// the parent is not read.
	Parent string
	// Compression is "s2", "zstd" or "none"; "": s2.
	Compression string
	// Parallel is how many files are read, hashed, compressed and uploaded at once; 0: DefaultWorkers.
	Parallel int
	// FlushEvery and KeepTimeout are those of Request. Half of KeepTimeout comes on top of it, for the files that are being read.
	FlushEvery  time.Duration
	KeepTimeout time.Duration
	// Progress is called now and then, from one goroutine at a time, with no lock held. It may be nil.
	Progress func(FilesProgress)
}

// FilesProgress is how far a backup or a restore of files is.
type FilesProgress struct {
	// TotalFiles and TotalBytes are all regular files and symbolic links, and the sum of their sizes. They grow until TotalKnown.
	TotalFiles, TotalBytes int64
	TotalKnown             bool
	// DoneFiles and DoneBytes of them are settled: stored or restored, or known to be there already. A file with several names
	// counts once for each name, and a hole counts like data.
	DoneFiles, DoneBytes int64
	// ReadBytes were read from the volume, or, in a restore, written to it.
	ReadBytes int64
	// UploadedBytes went to the storage, compressed and encrypted. It is 0 in a restore.
	UploadedBytes int64
}

// FilesRestoreRequest asks for the files of a restore point.
type FilesRestoreRequest struct {
	// ID is the restore point's.
	ID string
	// Directory gets the files, and the owner, permissions and attributes of the directory that was backed up. It must be empty
	// but for lost+found, or hold what an interrupted restore of the same restore point has left, which is then continued. Anything
	// else is refused with errclass.Conflict, and nothing is changed.
	Directory string
	// Parallel is how many files are written at once; 0: DefaultWorkers.
	Parallel int
	// Progress is called now and then, from one goroutine at a time, with no lock held. It may be nil.
	Progress func(FilesProgress)
}

// request returns what a backup of files has in common with one of disks, with its defaults.
func (q *FilesRequest) request() Request {
	r := Request{
		ID: q.ID, Source: q.Source, Time: q.Time, Group: q.Group, Labels: q.Labels, Parent: q.Parent, Compression: q.Compression, Workers: q.Parallel,
		FlushEvery: q.FlushEvery, KeepTimeout: q.KeepTimeout, files: true,
	}
	return r.withDefaults()
}

func (q *FilesRequest) validate(r *Request) error {
	if q.Root == "" {
		return fmt.Errorf("%w: no directory", errclass.Invalid)
	}
	return r.validateSource()
}

// findFilesParent returns the restore point to start from. If it is nil, the reason says why everything is read.
func (h *history) findFilesParent(q *Request, identity string) (*RestorePoint, FullReason, error) {
	if q.Parent == ParentNone {
		return nil, FullAsked, nil
	}
	var parent *RestorePoint
	for _, p := range h.points {
		if p.Files != nil && (q.Parent == ParentAuto || q.Parent == p.ID) {
			parent = p
		}
	}
	switch {
	case parent == nil && q.Parent != ParentAuto:
		return nil, "", fmt.Errorf("parent %s of %s: %w", q.Parent, q.Source, errclass.NotFound)
	case q.Parent == ParentAuto && h.damage != nil && (parent == nil || h.damagedAt.After(parent.OrderTime())):
		return nil, FullParentDamaged, nil // The damaged one may be the latest.
	case parent == nil:
		return nil, FullNoParent, nil
	case parent.Files.Identity != identity:
		return nil, FullOtherIdentity, nil
	}
	return parent, "", nil
}

// trustedBefore returns the time before which a file must have been changed last to be taken over from the parent.
func trustedBefore(parent *RestorePoint) int64 {
	if parent == nil {
		return math.MaxInt64 // There is only an earlier attempt at the same restore point.
	}
	return parent.Files.Changed
}

func (q *FilesRestoreRequest) parallel() int {
	if q.Parallel > 0 {
		return q.Parallel
	}
	return table.DefaultWorkers
}
