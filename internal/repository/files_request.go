package repository

import (
	"context"
	"errors"
	"time"
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
	// FlushEvery and KeepTimeout are those of Request.
	FlushEvery  time.Duration
	KeepTimeout time.Duration
	// Progress is called now and then, from one goroutine at a time, with no lock held. It may be nil.
	Progress func(FilesProgress)
}

// FilesProgress is how far a backup or a restore of files is.
type FilesProgress struct {
	// TotalFiles and TotalBytes are all regular files and the sum of their sizes. They grow until TotalKnown.
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

// BackupFiles makes a restore point of the files in a directory: either a complete one, or none and an error. A file that cannot
// be read is an error that has its path. If the storage does not answer at the very end, the error is errclass.Unknown, and the
// restore point may exist.
//
// Sockets are left out, and counted in RestorePoint.Files. Everything else comes back: contents, holes, owners, permissions, times of
// modification to the nanosecond, extended attributes, hard links, symbolic links, pipes, devices, and names that are not UTF-8.
func (r *Repository) BackupFiles(ctx context.Context, q FilesRequest) (*RestorePoint, error) {
	return nil, errors.ErrUnsupported
}

// RestoreFiles writes the files of a restore point into a directory. What is written was authenticated when it was read. When
// RestoreFiles returns nil everything is durable. If it fails, or this process dies, the next call with the same request
// continues: it does not write complete files again. It holds a lease on the restore point, unless the connection is read-only.
//
// A restore point without files is errclass.Invalid. What the file system or this process's privileges cannot take, such as a
// device or an attribute of a namespace, is an error.
func (r *Repository) RestoreFiles(ctx context.Context, q FilesRestoreRequest) error {
	return errors.ErrUnsupported
}
