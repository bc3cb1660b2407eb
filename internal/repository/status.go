package repository

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kopia/kopia/repo/blob"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/storage"
)

// Status describes a repository and what it holds. Sizes are in bytes.
type Status struct {
	// Location is where it is, without keys. UniqueID distinguishes it from all others.
	Location string `json:"location"`
	// ConfigFile is the file that Connect wrote; "" if there is none.
	ConfigFile string `json:"configFile"`
	UniqueID   string `json:"uniqueID"`
	// Host and User identify this machine in it.
	Host     string `json:"host"`
	User     string `json:"user"`
	ReadOnly bool   `json:"readOnly,omitempty"`
	Format   Format `json:"format"`
	// ObjectLock is how long blobs cannot be deleted; nil if they can.
	ObjectLock    *ObjectLock    `json:"objectLock,omitempty"`
	RestorePoints int            `json:"restorePoints"`
	Sources       []SourceStatus `json:"sources"`
	// Unreadable says which restore points cannot be read; "" if all can.
	Unreadable string `json:"unreadable,omitempty"`
	// Contents is how many blocks, tables and manifests the index has. Each process that opens the repository holds the whole
	// index in memory, about IndexMemoryBytes, or in its cache if the connection has one.
	Contents         int64 `json:"contents"`
	IndexMemoryBytes int64 `json:"indexMemoryBytes"`
	// Blobs are what the storage holds, by kind. FreeBytes is how much room it has; nil if it does not say.
	Blobs       []BlobStatus      `json:"blobs"`
	FreeBytes   *int64            `json:"freeBytes,omitempty"`
	Maintenance MaintenanceStatus `json:"maintenance"`
}

// Format describes how the repository stores data.
type Format struct {
	Version    int    `json:"version"`
	Hash       string `json:"hash"`
	Encryption string `json:"encryption"`
	// ErrorCorrection is the algorithm, or "".
	ErrorCorrection string `json:"errorCorrection,omitempty"`
	PackBytes       int    `json:"packBytes"`
}

// ObjectLock is the storage's promise not to delete.
type ObjectLock struct {
	Mode   string        `json:"mode"`
	Period time.Duration `json:"-"`
	// Seconds is Period in seconds.
	Seconds int64 `json:"seconds"`
}

// SourceStatus is one history.
type SourceStatus struct {
	Source        Source    `json:"source"`
	RestorePoints int       `json:"restorePoints"`
	Oldest        time.Time `json:"oldest"`
	Latest        time.Time `json:"latest"`
	// DiskBytes is the size of all disks of the latest restore point.
	DiskBytes int64 `json:"diskBytes"`
}

// BlobStatus is how much there is of one kind of blob.
type BlobStatus struct {
	Kind  string `json:"kind"`
	Blobs int64  `json:"blobs"`
	Bytes int64  `json:"bytes"`
}

// Kinds of blobs.
const (
	DataBlobs     = "data"
	MetadataBlobs = "metadata"
	IndexBlobs    = "index"
	OtherBlobs    = "other"
	// UnfinishedBlobs are half written, by somebody at work or by nobody any more. A bucket has none.
	UnfinishedBlobs = "unfinished"
)

// blobKinds maps the prefixes of blobs' names to their kinds.
var blobKinds = []struct{ prefix, kind string }{
	{"p", DataBlobs}, {"q", MetadataBlobs}, {"x", IndexBlobs}, {"n", IndexBlobs}, {"m", IndexBlobs}, {"l", IndexBlobs},
}

// contentIndexBytes is roughly what a content takes in an index.
const contentIndexBytes = 33

// TotalBytes returns the size of all blobs together.
func (s *Status) TotalBytes() (n int64) {
	for _, b := range s.Blobs {
		n += b.Bytes
	}
	return n
}

// Status lists the blobs and the restore points. Restore points that cannot be read are not an error; the status notes them.
func (r *Repository) Status(ctx context.Context) (*Status, error) {
	options := r.conn.Kopia.ClientOptions()
	s := &Status{
		Location: storage.Describe(r.conn.Kopia.BlobReader().ConnectionInfo()), ConfigFile: r.conn.Access.ConfigFile, UniqueID: r.ID(),
		Host: options.Hostname, User: options.Username, ReadOnly: options.ReadOnly,
	}
	for _, part := range []func(context.Context, *Status) error{r.addFormat, r.addHistories, r.addMaintenance, r.addIndex} {
		if err := part(ctx, s); err != nil {
			return nil, fmt.Errorf("status of the repository: %w", err)
		}
	}
	var err error
	if s.Blobs, err = r.Stored(ctx); err != nil {
		return nil, fmt.Errorf("status of the repository: %w", err)
	}
	if c, err := r.conn.Kopia.BlobVolume().GetCapacity(ctx); err == nil {
		free := int64(c.FreeB)
		s.FreeBytes = &free
	}
	return s, nil
}

// Stored counts the blobs by kind, including unfinished ones if there are any.
func (r *Repository) Stored(ctx context.Context) ([]BlobStatus, error) {
	out := []BlobStatus{{Kind: DataBlobs}, {Kind: MetadataBlobs}, {Kind: IndexBlobs}, {Kind: OtherBlobs}}
	err := r.conn.Kopia.BlobReader().ListBlobs(ctx, "", func(b blob.Metadata) error {
		kind := OtherBlobs
		for _, k := range blobKinds {
			if strings.HasPrefix(string(b.BlobID), k.prefix) {
				kind = k.kind
			}
		}
		for i := range out {
			if out[i].Kind == kind {
				out[i].Blobs++
				out[i].Bytes += b.Length
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list the blobs: %w", err)
	}
	blobs, bytes, err := storage.CountUnfinished(ctx, r.conn.Kopia.BlobReader())
	if blobs > 0 {
		out = append(out, BlobStatus{Kind: UnfinishedBlobs, Blobs: blobs, Bytes: bytes})
	}
	return out, err
}

func (r *Repository) addFormat(ctx context.Context, s *Status) error {
	m := r.conn.Kopia.FormatManager()
	p, err := m.GetMutableParameters(ctx)
	if err != nil {
		return err
	}
	s.Format = Format{
		Version: int(p.Version), Hash: m.GetHashFunction(), Encryption: m.GetEncryptionAlgorithm(),
		ErrorCorrection: m.GetECCAlgorithm(), PackBytes: p.MaxPackSize,
	}
	s.ObjectLock, err = r.ObjectLock(ctx)
	return err
}

// ObjectLock returns how long the storage keeps what is written from being deleted; nil if it does not.
func (r *Repository) ObjectLock(ctx context.Context) (*ObjectLock, error) {
	blobs, err := r.conn.Kopia.FormatManager().BlobCfgBlob(ctx)
	if err != nil || !blobs.IsRetentionEnabled() {
		return nil, err
	}
	return &ObjectLock{Mode: string(blobs.RetentionMode), Period: blobs.RetentionPeriod, Seconds: int64(blobs.RetentionPeriod / time.Second)}, nil
}

// addIndex counts the contents in the index, which is in memory.
func (r *Repository) addIndex(ctx context.Context, s *Status) (err error) {
	s.Contents, _, err = r.Contents(ctx, 100, 0)
	s.IndexMemoryBytes = s.Contents * contentIndexBytes
	return err
}

func (r *Repository) addHistories(ctx context.Context, s *Status) error {
	points, err := r.List(ctx, nil)
	if err != nil {
		if !errors.Is(err, errclass.Corrupt) {
			return err
		}
		s.Unreadable = err.Error()
	}
	SortByMaking(points)
	s.RestorePoints = len(points)
	s.Sources = []SourceStatus{} // [] in JSON, not null
	at := map[Source]int{}
	for _, p := range points {
		i, ok := at[p.Source]
		if !ok {
			i = len(s.Sources)
			at[p.Source] = i
			s.Sources = append(s.Sources, SourceStatus{Source: p.Source, Oldest: p.Time})
		}
		h := &s.Sources[i]
		h.RestorePoints++
		h.Latest, h.DiskBytes = p.Time, p.DiskBytes()
	}
	slices.SortFunc(s.Sources, func(a, b SourceStatus) int { return a.Source.Compare(b.Source) })
	return nil
}
