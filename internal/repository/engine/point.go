package engine

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kopia/kopia/repo/object"
	"github.com/kopia/kopia/snapshot"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/table"
)

const (
	// formatVersion is the version of the entry that describes a restore point of disks, and filesVersion that of one with files.
	formatVersion = 1
	filesVersion  = 2
	// PointEntry is the name of that entry in the restore point's directory. No disk may have this name.
	PointEntry = "varve.json"
	// maxPointBytes is the largest size at which it is read.
	maxPointBytes = 16 << 20
	// TagFormat, with the value FormatTag, marks a kopia snapshot as a restore point.
	TagFormat = "tag:varve"
	FormatTag = "1"
	// TagID is the tag with the restore point's ID.
	TagID = "tag:varve-id"
)

// Source says whose disks a history holds: kopia's user@host:path.
type Source struct {
	Host string `json:"host"`
	User string `json:"user"`
	// Path begins with a slash.
	Path string `json:"path"`
}

func (s Source) String() string { return s.User + "@" + s.Host + ":" + s.Path }

// KopiaSource returns the source as kopia names it.
func (s Source) KopiaSource() snapshot.SourceInfo {
	return snapshot.SourceInfo{Host: s.Host, UserName: s.User, Path: s.Path}
}

// RestorePoint is what the disks of a source held at one moment.
type RestorePoint struct {
	// ID is 32 hexadecimal digits that never change. Snapshot is the ID for the kopia CLI, which changes with each pin.
	ID       string    `json:"id"`
	Snapshot string    `json:"snapshot"`
	Source   Source    `json:"source"`
	Time     time.Time `json:"time"`
	// After is set if a clock was ahead: the restore point was made after all those of its history up to this time, although its
	// own time is not later.
	After time.Time `json:"after,omitzero"`
	Disks []Disk    `json:"disks"`
	// Files is nil for a restore point of disks. A restore point with files has no disks.
	Files *Files `json:"files,omitempty"`
	// Definition is nil if the restore point has no definition of a machine.
	Definition *Definition `json:"definition,omitempty"`
	// Group is the same for the restore points of one machine's disks at one point in time; "": none.
	Group string `json:"group,omitempty"`
	// Labels are what whoever asked for the restore point wrote on it.
	Labels map[string]string `json:"labels,omitempty"`
	// Pins protect the restore point from retention.
	Pins []string `json:"pins,omitempty"`
}

// Disk returns the disk called name.
func (p *RestorePoint) Disk(name string) (*Disk, error) {
	for i := range p.Disks {
		if p.Disks[i].Name == name {
			return &p.Disks[i], nil
		}
	}
	return nil, fmt.Errorf("%w: restore point %s has no disk %q", errclass.NotFound, p.ID, name)
}

// Disk is one disk of a restore point, as the entry varve.json describes it.
type Disk struct {
	Name string `json:"name"`
	// Bytes is the disk's size, BlockBytes that of its blocks.
	Bytes      int64 `json:"bytes"`
	BlockBytes int64 `json:"blockBytes"`
	// Object is the kopia object with the disk's content: the list of its regions.
	Object object.ID `json:"object"`
	// Zero is the block of BlockBytes zeroes, and ZeroTail is a block of zeroes as long as the disk's last block. Holes refer to
	// them.
	Zero     object.ID `json:"zero"`
	ZeroTail object.ID `json:"zeroTail"`
	// Digest is "sha256:" and the SHA-256 of the list of regions as it is stored, that is, of hashes of hashes of the content. In
	// one repository, two disks with the same digest have the same content: where blocks differ, so do their tables and the list.
	Digest string `json:"digest"`
	// Identity distinguishes the source's disk from another disk of the same name: for example a claim's UID, or a file's device
	// number and inode.
	Identity string `json:"identity,omitempty"`
	// Change names the point in time in the source's own tracking of changes: a checkpoint, a bitmap, a snapshot.
	Change string `json:"change,omitempty"`
	// Parent is the restore point whose table this one's started from. Base is the Change there, from which the changes were
	// counted.
	Parent string `json:"parent,omitempty"`
	Base   string `json:"base,omitempty"`
	// FullReason says why everything was read; empty for an incremental.
	FullReason FullReason `json:"fullReason,omitempty"`
	Stats      Stats      `json:"stats"`
}

// Stats says what a backup did with a disk, in bytes.
type Stats struct {
	// ReadBytes were read from the source, ZeroBytes of them were zero.
	ReadBytes int64 `json:"readBytes"`
	ZeroBytes int64 `json:"zeroBytes"`
	// ChangedBytes are in blocks that the previous restore point does not have in the same place; for the first restore point, in
	// all blocks that are not zero.
	ChangedBytes int64 `json:"changedBytes"`
}

// PointFile is the content of varve.json.
type PointFile struct {
	Format int       `json:"format"`
	ID     string    `json:"id"`
	Time   time.Time `json:"time"`
	After  time.Time `json:"after,omitzero"`
	Disks  []Disk    `json:"disks,omitempty"`
	Files  *Files    `json:"files,omitempty"`
	// Definition describes the file varve.definition; programs that do not know it ignore it.
	Definition *Definition `json:"definition,omitempty"`
}

func (p *RestorePoint) pointFile() PointFile {
	f := PointFile{
		Format: formatVersion, ID: p.ID, Time: p.Time.UTC(), After: p.After, Disks: p.Disks,
		Files: p.Files, Definition: p.Definition,
	}
	if p.Files != nil {
		f.Format = filesVersion
	}
	return f
}

// OrderTime returns the time by which the restore points of a history are ordered. A clock that was ahead does not upset this
// order.
func (p *RestorePoint) OrderTime() time.Time {
	if p.After.IsZero() {
		return p.Time
	}
	return p.After.Add(1)
}

// SortByMaking sorts the restore points of a history in the order in which they were made. The order of their times differs if a
// clock was ahead.
func SortByMaking(points []*RestorePoint) {
	slices.SortStableFunc(points, func(a, b *RestorePoint) int { return a.OrderTime().Compare(b.OrderTime()) })
}

// EncodePoint returns the varve.json of a restore point.
func EncodePoint(p *RestorePoint) ([]byte, error) { return json.MarshalIndent(p.pointFile(), "", "  ") }

// DecodePoint reads and checks a varve.json.
func DecodePoint(data []byte) (PointFile, error) {
	var f PointFile
	if err := json.Unmarshal(data, &f); err != nil {
		return f, fmt.Errorf("%w: %s: %w", errclass.Corrupt, PointEntry, err)
	}
	return f, f.checkFields()
}

// checkFields says what is wrong with the content of a varve.json.
func (f *PointFile) checkFields() error {
	if f.Format != formatVersion && f.Format != filesVersion {
		return fmt.Errorf("%w: %s has format %d; this program reads %d and %d: use a newer one", errclass.Invalid, PointEntry, f.Format, formatVersion, filesVersion)
	}
	if hasFiles := f.Files != nil; hasFiles != (f.Format == filesVersion) || hasFiles && len(f.Disks) > 0 {
		return fmt.Errorf("%w: %s has format %d and %d disks, and has files: %t", errclass.Corrupt, PointEntry, f.Format, len(f.Disks), hasFiles)
	}
	if f.Files != nil && (f.Files.Tree == object.EmptyID || f.Files.Attributes == object.EmptyID) {
		return fmt.Errorf("%w: %s has files without a tree or attributes", errclass.Corrupt, PointEntry)
	}
	if f.Definition != nil && f.Definition.Object == object.EmptyID {
		return fmt.Errorf("%w: %s has a definition without an object", errclass.Corrupt, PointEntry)
	}
	if f.ID == "" {
		return fmt.Errorf("%w: %s has no ID", errclass.Corrupt, PointEntry)
	}
	for i, d := range f.Disks {
		if _, err := table.NewGeometry(d.Bytes, d.BlockBytes); err != nil {
			return fmt.Errorf("%w: %s: disk %q: %w", errclass.Corrupt, PointEntry, d.Name, err)
		}
		if d.Name == "" || slices.ContainsFunc(f.Disks[:i], func(o Disk) bool { return o.Name == d.Name }) {
			return fmt.Errorf("%w: %s: disk %d is called %q", errclass.Corrupt, PointEntry, i, d.Name)
		}
	}
	return nil
}

// List returns the restore points of a source, or of all sources for nil, oldest first. If some are damaged, or have another
// format, the error is errclass.Corrupt or errclass.Invalid, and the others are returned nevertheless. With any other error none
// is returned.
func (c *Connection) List(ctx context.Context, source *Source) ([]*RestorePoint, error) {
	snapshots, err := c.FindPoints(ctx, source, "")
	return c.readListed(ctx, snapshots, err)
}

// ListSelected is List for the restore points that a filter selects.
func (c *Connection) ListSelected(ctx context.Context, f *Filter) ([]*RestorePoint, error) {
	snapshots, err := c.FindSelected(ctx, f)
	return c.readListed(ctx, snapshots, err)
}

// ListMatching is List for all restore points whose IDs begin with one of the prefixes.
func (c *Connection) ListMatching(ctx context.Context, prefixes ...string) ([]*RestorePoint, error) {
	snapshots, err := c.FindMatching(ctx, func(id string) bool {
		return slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(id, prefix) })
	})
	return c.readListed(ctx, snapshots, err)
}

// readListed reads these restore points. err says what is wrong with others.
func (c *Connection) readListed(ctx context.Context, snapshots []*StoredPoint, err error) ([]*RestorePoint, error) {
	if err != nil && !errors.Is(err, errclass.Corrupt) {
		return nil, err
	}
	points, bad := ReadPoints(ctx, c.Reader(), snapshots, ReadPoint)
	if bad != nil && points == nil {
		return nil, bad
	}
	slices.SortFunc(points, func(a, b *RestorePoint) int { return a.Time.Compare(b.Time) })
	return points, errors.Join(err, bad)
}

// NewPointID makes the ID of a restore point.
func NewPointID() string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // It never fails.
	return hex.EncodeToString(id[:])
}

// Get returns the restore point with the given ID.
func (c *Connection) Get(ctx context.Context, id string) (*RestorePoint, error) {
	s, err := c.FindPoint(ctx, id)
	if err != nil {
		return nil, err
	}
	return ReadPoint(ctx, c.Reader(), s)
}

// FindPoint finds a restore point, even if others cannot be listed.
func (c *Connection) FindPoint(ctx context.Context, id string) (*StoredPoint, error) {
	if id == "" {
		return nil, fmt.Errorf("%w: an empty ID of a restore point", errclass.Invalid)
	}
	found, err := c.FindPoints(ctx, nil, id)
	if len(found) > 0 {
		return found[0], nil
	}
	return nil, fmt.Errorf("restore point %s: %w", id, cmp.Or[error](err, errclass.NotFound))
}

// ReadPointFile reads the varve.json in the directory of a restore point.
func ReadPointFile(ctx context.Context, cr table.ContentReader, root *snapshot.DirEntry) (PointFile, error) {
	if root == nil {
		return PointFile{}, fmt.Errorf("%w: it has no root", errclass.Corrupt)
	}
	var dir snapshot.DirManifest
	if err := ReadJSON(ctx, cr, root.ObjectID, &dir); err != nil {
		return PointFile{}, err
	}
	i := slices.IndexFunc(dir.Entries, func(e *snapshot.DirEntry) bool { return e.Name == PointEntry })
	if i < 0 {
		return PointFile{}, fmt.Errorf("%w: it has no %s", errclass.Corrupt, PointEntry)
	}
	data, err := table.ReadObject(ctx, cr, dir.Entries[i].ObjectID, maxPointBytes)
	if err != nil {
		return PointFile{}, err
	}
	return DecodePoint(data)
}

// ReadJSON reads a small object that is JSON.
func ReadJSON(ctx context.Context, cr table.ContentReader, id object.ID, into any) error {
	data, err := table.ReadObject(ctx, cr, id, maxPointBytes)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("%w: object %s: %w", errclass.Corrupt, id, err)
	}
	return nil
}

// FullReason says why a disk was read as a whole.
type FullReason string

// The reasons.
const (
	// FullAsked: the request said so.
	FullAsked FullReason = "Requested"
	// FullNoParent: the source has no restore point with this disk.
	FullNoParent FullReason = "NoParent"
	// FullNoChanges: the source does not know what changed.
	FullNoChanges FullReason = "ChangesUnknown"
	// FullOtherBase: the changes are not counted from the parent's point in time.
	FullOtherBase FullReason = "OtherBase"
	// FullOtherIdentity: it is another disk of the same name.
	FullOtherIdentity FullReason = "DiskReplaced"
	// FullOtherContent: a part that did not change differs from the parent. It is another disk, which has a bitmap of the same
	// name, or not all changes were recorded.
	FullOtherContent FullReason = "ContentDiffers"
	// FullParentDamaged: the parent's description or table, or a block in it, is damaged or no longer in the repository.
	FullParentDamaged FullReason = "ParentDamaged"
	// FullParentLater: the parent has files as they were later than those to be stored, or somebody has set the clock of the machine
	// that writes to them back. When a file was changed then says nothing.
	FullParentLater FullReason = "ParentLater"
)

// DiskBytes returns the size of all disks, or of all files, together.
func (p *RestorePoint) DiskBytes() (n int64) {
	for _, d := range p.Disks {
		n += d.Bytes
	}
	if p.Files != nil {
		n += p.Files.Bytes
	}
	return n
}

// Compare orders sources by path, host and user.
func (s Source) Compare(o Source) int {
	return cmp.Or(cmp.Compare(s.Path, o.Path), cmp.Compare(s.Host, o.Host), cmp.Compare(s.User, o.User))
}

// Pinned says whether anything pins the restore point.
func (p *RestorePoint) Pinned() bool { return len(p.Pins) > 0 }

// HasDisk says whether the restore point has a disk of this name.
func (p *RestorePoint) HasDisk(disk string) bool {
	return slices.ContainsFunc(p.Disks, func(d Disk) bool { return d.Name == disk })
}

// Add adds what was done with another part of the disk.
func (s *Stats) Add(o Stats) {
	s.ReadBytes += o.ReadBytes
	s.ZeroBytes += o.ZeroBytes
	s.ChangedBytes += o.ChangedBytes
}
