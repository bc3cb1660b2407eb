package image

import (
	"context"
	"fmt"
	"sync"

	"github.com/kopia/kopia/repo/object"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/internal/repository/table"
)

// maxCachedRegions bounds how many tables an Image keeps. Each takes 20 KiB.
const maxCachedRegions = 1024

// Image gives random access to a disk of a restore point. It keeps the list of regions, and up to maxCachedRegions tables of
// regions.
type Image struct {
	Disk engine.Disk
	// Geometry says how the disk is cut, and List holds its regions. Neither must be changed.
	Geometry table.Geometry
	List     []object.IndirectObjectEntry

	reader *engine.ContentReader
	// runBuffers holds *[]byte as long as a run.
	runBuffers sync.Pool

	mu     sync.Mutex
	tables map[regionKey][]object.IndirectObjectEntry
}

// regionKey distinguishes the tables of regions. All holes share one.
type regionKey struct {
	object object.ID
	length int64
}

// Open opens a disk.
func Open(ctx context.Context, r *engine.ContentReader, d engine.Disk) (*Image, error) {
	g, err := table.NewGeometry(d.Bytes, d.BlockBytes)
	if err != nil {
		return nil, err
	}
	list, err := table.ReadList(ctx, r, g, d.Object)
	if err != nil {
		return nil, fmt.Errorf("disk %s: %w", d.Name, err)
	}
	return New(d, r, g, list), nil
}

// New makes the Image of a disk with this list of regions.
func New(d engine.Disk, r *engine.ContentReader, g table.Geometry, list []object.IndirectObjectEntry) *Image {
	return &Image{Disk: d, reader: r, Geometry: g, List: list, tables: map[regionKey][]object.IndirectObjectEntry{}}
}

// ReadRegion returns the table of region i.
func (m *Image) ReadRegion(ctx context.Context, i int) ([]object.IndirectObjectEntry, error) {
	if t := m.cachedRegion(i); t != nil {
		return t, nil
	}
	t, err := table.ReadRegion(ctx, m.reader, m.Geometry, i, m.List[i].Object)
	if err != nil {
		return nil, fmt.Errorf("disk %s: %w", m.Disk.Name, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for k := range m.tables {
		if len(m.tables) < maxCachedRegions {
			break
		}
		delete(m.tables, k)
	}
	m.tables[m.cacheKey(i)] = t
	return t, nil
}

// cachedRegion returns the table of region i if it is cached, else nil.
func (m *Image) cachedRegion(i int) []object.IndirectObjectEntry {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.tables[m.cacheKey(i)]
}

func (m *Image) cacheKey(i int) regionKey {
	return regionKey{m.List[i].Object, m.List[i].Length}
}

// IsHole says whether a block is a hole.
func (m *Image) IsHole(e object.IndirectObjectEntry) bool {
	if e.Length == m.Geometry.BlockBytes {
		return e.Object == m.Disk.Zero
	}
	return e.Object == m.Disk.ZeroTail
}

// ReadAt fills p with the disk's bytes from offset on.
func (m *Image) ReadAt(ctx context.Context, p []byte, offset int64) error {
	if e := (extent.Extent{Offset: offset, Length: int64(len(p))}); !e.Valid() || e.End() > m.Disk.Bytes {
		return fmt.Errorf("%w: read %s of a disk of %d bytes", errclass.Invalid, e, m.Disk.Bytes)
	}
	for len(p) > 0 {
		i, j := m.Geometry.Locate(offset)
		entries, err := m.ReadRegion(ctx, i)
		if err != nil {
			return err
		}
		in := m.Geometry.Block(i, j)
		n := int(min(int64(len(p)), in.End()-offset))
		if m.IsHole(entries[j]) {
			clear(p[:n])
		} else {
			data, err := m.readBlock(ctx, in, entries[j].Object)
			if err != nil {
				return err
			}
			copy(p[:n], data[offset-in.Offset:])
		}
		p, offset = p[n:], offset+int64(n)
	}
	return nil
}

func (m *Image) readBlock(ctx context.Context, in extent.Extent, id object.ID) ([]byte, error) {
	data, err := table.ReadBlock(ctx, m.reader, id, in.Length)
	if err != nil {
		return nil, fmt.Errorf("disk %s at %d: %w", m.Disk.Name, in.Offset, err)
	}
	return data, nil
}

// Block returns the content of the block with this number, for the caller to keep; nil for a hole.
func (m *Image) Block(ctx context.Context, number int64) ([]byte, error) {
	i, j := m.Geometry.Locate(number * m.Geometry.BlockBytes)
	entries, err := m.ReadRegion(ctx, i)
	if err != nil || m.IsHole(entries[j]) {
		return nil, err
	}
	return m.readBlock(ctx, m.Geometry.Block(i, j), entries[j].Object)
}

// Data returns the extents of a disk that are not holes.
func (m *Image) Data(ctx context.Context) (extent.Set, error) {
	var out extent.Set
	empty := map[object.ID]bool{}
	for i, region := range m.List {
		if empty[region.Object] {
			continue
		}
		entries, err := m.ReadRegion(ctx, i)
		if err != nil {
			return extent.Set{}, err
		}
		any := false
		for j, e := range entries {
			if !m.IsHole(e) {
				any = true
				out.Append(m.Geometry.Block(i, j))
			}
		}
		if !any {
			empty[region.Object] = true
		}
	}
	return out, nil
}

// NextRun returns how many bytes from e.Offset on, up to e's end, are of one kind, and whether they are a hole.
func (m *Image) NextRun(ctx context.Context, e extent.Extent) (length int64, zero bool, err error) {
	at := e.Offset
	for at < e.End() {
		i, j := m.Geometry.Locate(at)
		entries, err := m.ReadRegion(ctx, i)
		if err != nil {
			return 0, false, err
		}
		z := m.IsHole(entries[j])
		if at == e.Offset {
			zero = z
		}
		if z != zero {
			break
		}
		at = m.Geometry.Block(i, j).End()
	}
	return min(at, e.End()) - e.Offset, zero, nil
}

// ZeroBlock says whether the block with this number is a hole. known is false if that would take reading a table.
func (m *Image) ZeroBlock(number int64) (zero, known bool) {
	i, j := m.Geometry.Locate(number * m.Geometry.BlockBytes)
	entries := m.cachedRegion(i)
	if entries == nil {
		return false, false
	}
	return m.IsHole(entries[j]), true
}

// RegionBytes is the size of a region: the unit of Restore.
func (m *Image) RegionBytes() int64 { return m.Geometry.RegionBytes() }
