package collection

import (
	"path/filepath"
	"strings"
	"time"

	"github.com/varvebackup/varve/internal/disk"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export/endpoint"
	"github.com/varvebackup/varve/internal/manifest"
)

// defaultParallel is how many volumes are fetched at once.
const defaultParallel = 8

// ErrNoParent is of class Invalid: the parent of an incremental is not where it was looked for.
var ErrNoParent = errclass.New(errclass.Invalid, "the parent of the incremental backup was not found")

// Backup describes what is collected.
type Backup struct {
	// Namespace and VM are the machine's; Name and UID are those of the backup.
	Namespace, VM, Name, UID string
	// Tracker and Checkpoint are those of manifest.Manifest.
	Tracker, Checkpoint string
	// BaseCheckpoint and BaseUID are the checkpoint that incremental volumes start from, and the backup that made it.
	BaseCheckpoint, BaseUID string
	PointInTime             time.Time
	Quiesced                bool
	Volumes                 []Volume
	// Excluded are the machine's volumes that are not in the backup.
	Excluded []manifest.ExcludedVolume
}

// Volume is a volume of a backup.
type Volume struct {
	endpoint.Volume

	// FullReason is that of manifest.Volume.
	FullReason string
}

// Request asks for the volumes of a backup.
type Request struct {
	Backup Backup
	Client *endpoint.Client
	// Directory gets the files. It is created if it does not exist.
	Directory string
	// Format is that of the files; "": qcow2.
	Format disk.Format
	// Parent is the directory of the backup that incremental volumes continue; "": one beside Directory.
	Parent string
	// NoParent collects an incremental without its parent. Its images name no backing file.
	NoParent bool
	// Parallel is how many volumes are fetched at once; 0: 8.
	Parallel int
	// Progress is called from one goroutine for each volume. It may be nil.
	Progress func(Progress)
}

// The phases of a volume.
const (
	PhasePulling = "Pulling"
	PhaseHashing = "Hashing"
	PhaseDone    = "Done"
)

// Progress is how far a volume has come.
type Progress struct {
	Volume, Phase string
	// ProcessedBytes of TotalBytes are there. Zeroes do not count.
	ProcessedBytes, TotalBytes int64
}

// Result is what was collected.
type Result struct {
	Manifest *manifest.Manifest
	// Volumes are in the order of the manifest. They are empty if everything was there already.
	Volumes []VolumeResult
}

// VolumeResult is what a volume took.
type VolumeResult struct {
	Name string
	// DataBytes and ZeroBytes are the regions that the file has. ResumedBytes of the disk were there from an earlier attempt,
	// and the rest was fetched by this one.
	DataBytes, ZeroBytes, ResumedBytes int64
	// Stats are those of this attempt.
	Stats endpoint.StreamStats
}

func (q *Request) withDefaults() (Request, error) {
	out := *q
	if out.Format == "" {
		out.Format = disk.QCOW2
	}
	if out.Parallel <= 0 {
		out.Parallel = defaultParallel
	}
	if out.Progress == nil {
		out.Progress = func(Progress) {}
	}
	if len(q.Backup.Volumes) == 0 {
		return out, errclass.Errorf(errclass.Invalid, "backup %s has no volumes", q.Backup.Name)
	}
	seen := map[string]bool{}
	for _, v := range q.Backup.Volumes {
		// The name becomes that of a file.
		if v.Name == "" || strings.HasPrefix(v.Name, ".") || filepath.Base(v.Name) != v.Name || seen[v.Name] {
			return out, errclass.Errorf(errclass.Invalid, "backup %s has a volume %q: twice, or with a name that no file can have", q.Backup.Name, v.Name)
		}
		seen[v.Name] = true
		if v.Incremental && out.Format != disk.QCOW2 {
			return out, errclass.Errorf(errclass.Invalid, "volume %s is incremental, and a raw file cannot have only what has changed: collect it as qcow2, or make a full backup", v.Name)
		}
	}
	var err error
	out.Directory, err = filepath.Abs(q.Directory)
	return out, err
}

// isIncremental reports whether any volume is.
func (b *Backup) isIncremental() bool {
	for _, v := range b.Volumes {
		if v.Incremental {
			return true
		}
	}
	return false
}

// fileName returns the name of a volume's file.
func (q *Request) fileName(volume string) string { return volume + "." + string(q.Format) }
