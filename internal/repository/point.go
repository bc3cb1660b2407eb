package repository

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/kopia/kopia/repo/object"
	"github.com/kopia/kopia/snapshot"
)

const (
	// formatVersion is the version of the entry that describes a restore point.
	formatVersion = 1
	// pointEntry is the name of that entry in the restore point's directory. No disk may have this name.
	pointEntry = "varve.json"
	// maxPointBytes is the largest size at which it is read.
	maxPointBytes = 16 * mib
	// tagFormat, with the value formatTag, marks a kopia snapshot as a restore point.
	tagFormat = "tag:varve"
	formatTag = "1"
	// tagID is the tag with the restore point's ID.
	tagID = "tag:varve-id"
)

// Source says whose disks a history holds: kopia's user@host:path.
type Source struct {
	Host string `json:"host"`
	User string `json:"user"`
	// Path begins with a slash.
	Path string `json:"path"`
}

func (s Source) String() string { return s.User + "@" + s.Host + ":" + s.Path }

func (s Source) info() snapshot.SourceInfo {
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
	return nil, fmt.Errorf("%w: restore point %s has no disk %q", ErrNotFound, p.ID, name)
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

// pointFile is the content of varve.json.
type pointFile struct {
	Format int       `json:"format"`
	ID     string    `json:"id"`
	Time   time.Time `json:"time"`
	After  time.Time `json:"after,omitzero"`
	Disks  []Disk    `json:"disks"`
}

func (p *RestorePoint) file() pointFile {
	return pointFile{Format: formatVersion, ID: p.ID, Time: p.Time.UTC(), After: p.After, Disks: p.Disks}
}

// order returns the time by which the restore points of a history are ordered. A clock that was ahead does not upset this order.
func (p *RestorePoint) order() time.Time {
	if p.After.IsZero() {
		return p.Time
	}
	return p.After.Add(1)
}

// SortByMaking sorts the restore points of a history in the order in which they were made. The order of their times differs if a
// clock was ahead.
func SortByMaking(points []*RestorePoint) {
	slices.SortStableFunc(points, func(a, b *RestorePoint) int { return a.order().Compare(b.order()) })
}

func encodePoint(p *RestorePoint) ([]byte, error) { return json.MarshalIndent(p.file(), "", "  ") }

// decodePoint reads and checks a varve.json.
func decodePoint(data []byte) (pointFile, error) {
	var f pointFile
	if err := json.Unmarshal(data, &f); err != nil {
		return f, fmt.Errorf("%w: %s: %w", ErrCorrupt, pointEntry, err)
	}
	return f, f.check()
}

// check says what is wrong with the content of a varve.json.
func (f *pointFile) check() error {
	if f.Format != formatVersion {
		return fmt.Errorf("%w: %s has format %d; this program reads %d: use a newer one", ErrInvalid, pointEntry, f.Format, formatVersion)
	}
	if f.ID == "" {
		return fmt.Errorf("%w: %s has no ID", ErrCorrupt, pointEntry)
	}
	for i, d := range f.Disks {
		if _, err := newGeometry(d.Bytes, d.BlockBytes); err != nil {
			return fmt.Errorf("%w: %s: disk %q: %w", ErrCorrupt, pointEntry, d.Name, err)
		}
		if d.Name == "" || slices.ContainsFunc(f.Disks[:i], func(o Disk) bool { return o.Name == d.Name }) {
			return fmt.Errorf("%w: %s: disk %d is called %q", ErrCorrupt, pointEntry, i, d.Name)
		}
	}
	return nil
}

// List returns the restore points of a source, or of all sources for nil, oldest first. If some are damaged, or have another
// format, the error is ErrCorrupt or ErrInvalid, and the others are returned nevertheless. With any other error none is returned.
func (r *Repository) List(ctx context.Context, source *Source) ([]*RestorePoint, error) {
	snapshots, err := r.snapshots(ctx, source, "")
	return r.listed(ctx, snapshots, err)
}

// ListMatching is List for all restore points whose IDs begin with one of the prefixes.
func (r *Repository) ListMatching(ctx context.Context, prefixes ...string) ([]*RestorePoint, error) {
	snapshots, err := r.matching(ctx, func(id string) bool {
		return slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(id, prefix) })
	})
	return r.listed(ctx, snapshots, err)
}

// listed reads these restore points. err says what is wrong with others.
func (r *Repository) listed(ctx context.Context, snapshots []*stored, err error) ([]*RestorePoint, error) {
	if err != nil && !errors.Is(err, ErrCorrupt) {
		return nil, err
	}
	points, bad := readPoints(ctx, r.reader(), snapshots, readPoint)
	if bad != nil && points == nil {
		return nil, bad
	}
	slices.SortFunc(points, func(a, b *RestorePoint) int { return a.Time.Compare(b.Time) })
	return points, errors.Join(err, bad)
}

// newID makes the ID of a restore point.
func newID() string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // It never fails.
	return hex.EncodeToString(id[:])
}

// Get returns the restore point with the given ID.
func (r *Repository) Get(ctx context.Context, id string) (*RestorePoint, error) {
	s, err := r.stored(ctx, id)
	if err != nil {
		return nil, err
	}
	return readPoint(ctx, r.reader(), s)
}

// stored finds a restore point, even if others cannot be listed.
func (r *Repository) stored(ctx context.Context, id string) (*stored, error) {
	if id == "" {
		return nil, fmt.Errorf("%w: an empty ID of a restore point", ErrInvalid)
	}
	found, err := r.snapshots(ctx, nil, id)
	if len(found) > 0 {
		return found[0], nil
	}
	return nil, fmt.Errorf("restore point %s: %w", id, cmp.Or(err, ErrNotFound))
}

func readPointFile(ctx context.Context, cr contentReader, root *snapshot.DirEntry) (pointFile, error) {
	if root == nil {
		return pointFile{}, fmt.Errorf("%w: it has no root", ErrCorrupt)
	}
	var dir snapshot.DirManifest
	if err := readJSON(ctx, cr, root.ObjectID, &dir); err != nil {
		return pointFile{}, err
	}
	i := slices.IndexFunc(dir.Entries, func(e *snapshot.DirEntry) bool { return e.Name == pointEntry })
	if i < 0 {
		return pointFile{}, fmt.Errorf("%w: it has no %s", ErrCorrupt, pointEntry)
	}
	data, err := readAll(ctx, cr, dir.Entries[i].ObjectID)
	if err != nil {
		return pointFile{}, err
	}
	return decodePoint(data)
}

func readJSON(ctx context.Context, cr contentReader, id object.ID, into any) error {
	data, err := readAll(ctx, cr, id)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("%w: object %s: %w", ErrCorrupt, id, err)
	}
	return nil
}

// readAll reads a small object.
func readAll(ctx context.Context, cr contentReader, id object.ID) ([]byte, error) {
	or, err := object.Open(ctx, contents{cr}, id)
	if err != nil {
		return nil, readError(fmt.Sprintf("open object %s", id), err)
	}
	defer or.Close() //nolint:errcheck // it only reads
	if or.Length() > maxPointBytes {
		return nil, fmt.Errorf("%w: object %s has %d bytes", ErrCorrupt, id, or.Length())
	}
	data, err := io.ReadAll(or)
	if err != nil {
		return nil, readError(fmt.Sprintf("read object %s", id), err)
	}
	return data, nil
}
