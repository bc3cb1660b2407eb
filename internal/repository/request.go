package repository

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/internal/repository/table"
)

// Reader reads a disk as it was at the point in time of the backup.
type Reader interface {
	// ReadAt fills p with the bytes from offset on, or fails. It is called from several goroutines.
	ReadAt(ctx context.Context, p []byte, offset int64) error
}

// DiskSource is a disk to be backed up.
type DiskSource struct {
	// Name is the disk's name in the restore point, without slashes.
	Name   string
	Bytes  int64
	Reader Reader
	// Data holds the bytes that may be other than zero; nil: all. Nothing else is read.
	Data *extent.Set
	// Changes since an earlier point in time; nil: unknown.
	Changes *Changes
	// Identity and Change are recorded (see Disk). Change must be a name that was never given to another moment of this disk, and
	// never will be: incrementals depend on that. A name that the disk's history already has is refused with ErrChangeUsed.
	Identity, Change string
}

// Changes are what changed on a disk since another point in time.
type Changes struct {
	// Since is the Change that the other backup of the disk recorded. Set must hold everything that was written after that
	// moment: what tracks changes (a bitmap) must have existed, and recorded without a break, since then.
	Since string
	Set   extent.Set
	// Exclusive: no other disk has, or ever had, anything called Since. Otherwise the disk is compared with its parent in places,
	// so that another disk whose changes are counted from the same name is not mistaken for it.
	Exclusive bool
}

// Request asks for a restore point.
type Request struct {
	// ID is the ID of the future restore point, 32 hexadecimal digits in lower case; "": a new one. If a restore point of the
	// same source already has it, that one is returned and nothing is read. So a backup whose outcome is unknown can be repeated.
	ID     string
	Source Source
	// Time is the point in time of the disks' content; zero: when the backup begins.
	Time  time.Time
	Disks []DiskSource
	// Group is the same for the restore points of one machine's disks at one point in time, if each disk has a restore point of its
	// own; "": none. Labels are for whoever lists restore points. Both have limits: see MaxLabels and CheckLabels.
	Group  string
	Labels map[string]string
	// Definition is what it takes to make a machine of the disks again: JSON of at most MaxDefinitionBytes, which is opaque and may
	// hold secrets; nil: none. It is stored without the spaces around it.
	Definition []byte
	// Parent is the ID of the restore point to start from, or ParentAuto or ParentNone. ParentAuto starts from the latest one
	// with any of the disks, and from no older one.
	Parent string
	// BlockBytes is for disks without a history; 0: DefaultBlockBytes.
	BlockBytes int64
	// Compression is "s2", "zstd" or "none"; "": s2. A block that does not become smaller is stored as it is.
	Compression string
	// Workers read, hash, compress and upload in parallel, a run of blocks each: 1 MiB, or a block that is larger; 0: DefaultWorkers.
	Workers int
	// FlushEvery is how often what was uploaded is made findable, in case this process dies; 0: 5 minutes.
	FlushEvery time.Duration
	// KeepTimeout is how long a cancelled backup may take to store what it has, because somebody waits for its end. A backup that is
	// cancelled while its restore point is being published waits half of it for the outcome, and as long again to look for the
	// restore point. A backup that fails by itself may take at least 30 seconds. 0: 30 seconds.
	KeepTimeout time.Duration
	// Progress is called now and then, from one goroutine at a time, with no lock held. It delays the backup only at the beginning of
	// a disk and at the end. It may be nil.
	Progress func(Progress)

	// Check is called after all disks were read and stored, before the restore point is visible. If it returns an error,
	// the backup fails and makes no restore point. It may be nil.
	Check func(context.Context) error

	// files says that files are stored, and no disks.
	files     bool
	blockwise bool             // for tests: each block is a run of its own
	ticks     <-chan time.Time // for tests: when to call flushIfDue; nil: every now and then
	settled   func()           // for tests: called once a session manifest names everything, before publishing; may be nil
	flushing  func()           // for tests: called before the flush that makes the restore point visible; may be nil
}

// Choices of Request.Parent.
const (
	ParentAuto = "auto"
	ParentNone = "none"
)

const (
	// RegionBlocks is how many blocks a region has; a disk's last region may have fewer.
	RegionBlocks = table.RegionBlocks
	// MaxDiskBytes is the largest disk.
	MaxDiskBytes = table.MaxDiskBytes
	// DefaultWorkers is meant to exceed the number of processors, because readers wait.
	DefaultWorkers = table.DefaultWorkers
	// DefaultBlockBytes is the block size that docs/format.md has measurements for.
	DefaultBlockBytes = 256 << 10

	defaultFlushEvery  = 5 * time.Minute
	defaultKeepTimeout = 30 * time.Second
)

// compressors maps the names of Request.Compression to kopia's.
var compressors = map[string]string{"s2": "s2-default", "zstd": "zstd-fastest", "none": ""}

// BlockSizes returns the names of the block sizes on offer, the smallest first.
func BlockSizes() []string { return table.BlockSizes() }

// ParseBlockSize returns the block size in bytes for one of the names of BlockSizes.
func ParseBlockSize(name string) (int64, error) { return table.ParseBlockSize(name) }

// BlockBytesFor returns the block size, in bytes, that suits a disk of this many bytes. Every process that opens the
// repository has its index, with an entry for each block: 64 TiB have 280 million blocks of 256 KiB, and 17 million
// of 4 MiB.
func BlockBytesFor(diskBytes int64) int64 {
	switch {
	case diskBytes >= 16<<40:
		return 4 << 20
	case diskBytes >= 2<<40:
		return 1 << 20
	}
	return DefaultBlockBytes
}

func (q *Request) withDefaults() Request {
	out := *q
	if out.Parent == "" {
		out.Parent = ParentAuto
	}
	if out.BlockBytes == 0 {
		out.BlockBytes = DefaultBlockBytes
	}
	if out.Compression == "" {
		out.Compression = "s2"
	}
	if out.Workers <= 0 {
		out.Workers = DefaultWorkers
	}
	if out.FlushEvery <= 0 {
		out.FlushEvery = defaultFlushEvery
	}
	if out.KeepTimeout <= 0 {
		out.KeepTimeout = defaultKeepTimeout
	}
	out.Labels = maps.Clone(q.Labels)
	if q.Definition != nil {
		out.Definition = append([]byte{}, bytes.TrimSpace(q.Definition)...) // never nil: nothing but spaces is refused
	}
	if out.Progress == nil {
		out.Progress = func(Progress) {}
	}
	return out
}

// diskNames returns the names of the disks, sorted and separated by slashes, which they do not contain; for files, a slash.
func (q *Request) diskNames() string {
	if q.files {
		return "/"
	}
	var names []string
	for i := range q.Disks {
		names = append(names, q.Disks[i].Name)
	}
	slices.Sort(names)
	return strings.Join(names, "/")
}

// validID matches IDs that newID may have made.
var validID = regexp.MustCompile(`^[0-9a-f]{32}$`)

// validateSource checks what a backup of files has, too.
func (q *Request) validateSource() error {
	if q.ID != "" && !validID.MatchString(q.ID) {
		return fmt.Errorf("%w: ID %q: 32 hexadecimal digits in lower case", errclass.Invalid, q.ID)
	}
	if q.Source.Host == "" || q.Source.User == "" || q.Source.Path == "" {
		return fmt.Errorf("%w: source %q: host, user and path are needed", errclass.Invalid, q.Source)
	}
	if !utf8.ValidString(q.Source.String()) {
		return fmt.Errorf("%w: source %q: it is not UTF-8", errclass.Invalid, q.Source)
	}
	if _, ok := compressors[q.Compression]; !ok {
		return fmt.Errorf("%w: compression %q: s2, zstd or none", errclass.Invalid, q.Compression)
	}
	return CheckLabels(q.Group, q.Labels)
}

func (q *Request) validate() error {
	if err := q.validateSource(); err != nil {
		return err
	}
	if len(q.Disks) == 0 {
		return fmt.Errorf("%w: no disks", errclass.Invalid)
	}
	if q.Definition != nil {
		if err := engine.CheckDefinition(q.Definition); err != nil {
			return err
		}
	}
	names := map[string]bool{engine.PointEntry: true, engine.DefinitionEntry: true, engine.FilesName: true}
	for _, d := range q.Disks {
		if err := validName(d.Name); err != nil {
			return err
		}
		if names[d.Name] {
			return fmt.Errorf("%w: disk name %q is taken", errclass.Invalid, d.Name)
		}
		names[d.Name] = true
		if _, err := table.NewGeometry(d.Bytes, q.BlockBytes); err != nil {
			return fmt.Errorf("disk %s: %w", d.Name, err)
		}
	}
	return nil
}

func validName(name string) error {
	if name == "" || len(name) > 200 || name == "." || name == ".." {
		return fmt.Errorf("%w: disk name %q", errclass.Invalid, name)
	}
	if !utf8.ValidString(name) {
		return fmt.Errorf("%w: disk name %q: it is not UTF-8", errclass.Invalid, name)
	}
	for _, c := range name {
		if c == '/' || c < ' ' {
			return fmt.Errorf("%w: disk name %q: a slash or control character", errclass.Invalid, name)
		}
	}
	return nil
}
