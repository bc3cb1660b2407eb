// Package source reads a volume of a backup in pull mode as a disk: at any place and in any order, with the bytes that
// may be nonzero and those that have changed since the base, as disk.Source has it.
//
// Whoever describes the volume may be hostile. Its regions are collected as they come, in two sets with at most a
// million extents of 16 bytes each, whatever their number and size are. A set that would become larger is kept in
// larger granules, which says of more bytes that they may be data, or may have changed, and never of fewer. What nobody
// has described counts as data.
//
// A Disk may be used by several goroutines. A Map may not.
package source

import (
	"context"
	"fmt"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/extent"
)

// ErrVolume is what a volume is that contradicts its own description.
var ErrVolume = errclass.New(errclass.Invalid, "the volume is not as it describes itself")

// Map collects the regions of a volume. The zero value has none.
type Map struct {
	data, changed granules
	end           int64
}

// Add adds a region that begins where the last one ends, or later: then what is between them may be data and has not
// changed. ErrVolume: it begins earlier, or ends where no disk has bytes.
func (m *Map) Add(r export.Region) error {
	if !r.Valid() || r.Offset < m.end || r.End() > MaxBytes {
		return errclass.Errorf(ErrVolume, "%w: it has a region of %d bytes at %d after %d", ErrVolume, r.Length, r.Offset, m.end)
	}
	m.data.add(extent.Extent{Offset: m.end, Length: r.Offset - m.end})
	m.end = r.End()
	if r.Kind != export.Zero {
		m.data.add(r.Extent)
	}
	if r.Kind != export.Clean {
		m.changed.add(r.Extent)
	}
	return nil
}

// End returns where the last region ends.
func (m *Map) End() int64 { return m.end }

// Reader reads a volume.
type Reader interface {
	// ReadAt fills p from offset on, or fails.
	ReadAt(ctx context.Context, p []byte, offset int64) error
}

// Description is what a disk is beside its map.
type Description struct {
	// Bytes is the size of the disk, at least that of its map, and MaxBytes at most.
	Bytes int64
	// Incremental says that the regions tell what has changed since the base.
	Incremental bool
	// Identity is that of disk.Source.
	Identity string
}

// Disk returns the disk that has these regions. The map must not be used any more.
func (m *Map) Disk(d Description, r Reader) *Disk {
	m.data.add(extent.Extent{Offset: m.end, Length: d.Bytes - m.end})
	maybeData := m.data.within(d.Bytes)
	disk := &Disk{reader: r, description: d, maybeData: &maybeData}
	if d.Incremental {
		changed := m.changed.within(d.Bytes)
		disk.changed = &changed
	}
	return disk
}

// Disk is a volume as a disk.Source.
type Disk struct {
	reader      Reader
	description Description
	// maybeData may be nonzero; changed has changed since the base, or is nil.
	maybeData, changed *extent.Set
}

// Options say how to read a volume.
type Options struct {
	// Identity is that of disk.Source.
	Identity string
	// Whole leaves out what has changed: the caller does not know since when.
	Whole bool
}

// Open reads the regions of a volume. ErrVolume: it has no bytes, or too many, or its regions do not end where it ends.
func Open(ctx context.Context, v export.Volume, o Options) (*Disk, error) {
	info := v.Info()
	if info.Bytes <= 0 || info.Bytes > MaxBytes {
		return nil, errclass.Errorf(ErrVolume, "volume %s of %d bytes: %w: a disk has bytes, and %d at most", info.Name, info.Bytes, ErrVolume, int64(MaxBytes))
	}
	var m Map
	var refused error
	err := v.Regions(ctx, extent.Extent{Length: info.Bytes}, func(r export.Region) bool {
		refused = m.Add(r)
		return refused == nil
	})
	switch {
	case refused != nil:
		return nil, fmt.Errorf("read the map of volume %s: %w", info.Name, refused)
	case err != nil:
		return nil, fmt.Errorf("read the map of volume %s: %w", info.Name, err)
	case m.End() != info.Bytes:
		return nil, errclass.Errorf(ErrVolume, "volume %s: %w: its map ends at %d of %d bytes", info.Name, ErrVolume, m.End(), info.Bytes)
	}
	return m.Disk(Description{Bytes: info.Bytes, Incremental: info.Incremental && !o.Whole, Identity: o.Identity}, volumeReader{v}), nil
}

// volumeReader reads an export.Volume at any place.
type volumeReader struct{ volume export.Volume }

// ReadAt implements Reader.
func (r volumeReader) ReadAt(ctx context.Context, p []byte, offset int64) error {
	filled := 0
	name := r.volume.Info().Name
	err := r.volume.Read(ctx, extent.Extent{Offset: offset, Length: int64(len(p))}, export.Everything, func(c export.Chunk) error {
		if c.Offset != offset+int64(filled) || c.Length < 0 || c.Length > int64(len(p)-filled) || c.Data != nil && int64(len(c.Data)) != c.Length {
			return errclass.Errorf(ErrVolume, "volume %s: %w: it sends %v at %d", name, ErrVolume, c.Extent, offset+int64(filled))
		}
		to := p[filled : filled+int(c.Length)]
		if c.Data == nil {
			clear(to)
		} else {
			copy(to, c.Data)
		}
		filled += len(to)
		return nil
	})
	if err == nil && filled < len(p) {
		err = errclass.Errorf(ErrVolume, "volume %s: %w: it ends at %d", name, ErrVolume, offset+int64(filled))
	}
	return err
}

// Bytes is the disk's size.
func (d *Disk) Bytes() int64 { return d.description.Bytes }

// ReadAt fills p from offset on, or fails. Who serves the volume is not asked for what is not on the disk.
func (d *Disk) ReadAt(ctx context.Context, p []byte, offset int64) error {
	if offset < 0 || int64(len(p)) > d.Bytes()-offset {
		return errclass.Errorf(errclass.Invalid, "a disk of %d bytes does not have %d bytes at %d", d.Bytes(), len(p), offset)
	}
	return d.reader.ReadAt(ctx, p, offset)
}

// Data returns the bytes that may be nonzero, in whole granules of 64 KiB.
func (d *Disk) Data(context.Context) (*extent.Set, error) { return d.maybeData, nil }

// Changes returns the bytes that have changed since the base, in whole granules of 64 KiB, or nil if that is not known.
func (d *Disk) Changes(context.Context) (*extent.Set, error) { return d.changed, nil }

// Identity returns that of the description.
func (d *Disk) Identity() string { return d.description.Identity }

// Close does nothing: what the volume is read from outlives the disk.
func (d *Disk) Close() error { return nil }
