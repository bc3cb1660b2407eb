package repository

import (
	"context"
	"fmt"
	"sync"

	"github.com/kopia/kopia/repo/object"

	"github.com/varvebackup/varve/internal/extent"
)

// maxCachedRegions bounds how many tables an Image keeps. Each takes 20 KiB.
const maxCachedRegions = 1024

// Image gives random access to a disk of a restore point. It keeps the list of regions, and up to maxCachedRegions tables of
// regions.
type Image struct {
	Disk Disk

	r        *refreshing
	geometry geometry
	list     []object.IndirectObjectEntry

	mu     sync.Mutex
	tables map[regionTable][]object.IndirectObjectEntry
}

// regionTable distinguishes the tables of regions. All holes share one.
type regionTable struct {
	object object.ID
	length int64
}

// Image opens a disk.
func (r *Repository) Image(ctx context.Context, d Disk) (*Image, error) {
	g, err := newGeometry(d.Bytes, d.BlockBytes)
	if err != nil {
		return nil, err
	}
	list, err := readRegions(ctx, r.reader(), g, d.Object)
	if err != nil {
		return nil, fmt.Errorf("disk %s: %w", d.Name, err)
	}
	return newImage(d, r.reader(), g, list), nil
}

// newImage makes the Image of a disk with this list of regions.
func newImage(d Disk, r *refreshing, g geometry, list []object.IndirectObjectEntry) *Image {
	return &Image{Disk: d, r: r, geometry: g, list: list, tables: map[regionTable][]object.IndirectObjectEntry{}}
}

// blocks returns the table of region i.
func (m *Image) blocks(ctx context.Context, i int) ([]object.IndirectObjectEntry, error) {
	if t := m.known(i); t != nil {
		return t, nil
	}
	t, err := readBlocks(ctx, m.r, m.geometry, i, m.list[i].Object)
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
	m.tables[m.key(i)] = t
	return t, nil
}

// known returns the table of region i if it is cached, else nil.
func (m *Image) known(i int) []object.IndirectObjectEntry {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.tables[m.key(i)]
}

func (m *Image) key(i int) regionTable {
	return regionTable{m.list[i].Object, m.list[i].Length}
}

// zero says whether a block is a hole.
func (m *Image) zero(e object.IndirectObjectEntry) bool {
	if e.Length == m.geometry.block {
		return e.Object == m.Disk.Zero
	}
	return e.Object == m.Disk.ZeroTail
}

// ReadAt fills p with the disk's bytes from offset on.
func (m *Image) ReadAt(ctx context.Context, p []byte, offset int64) error {
	if e := (extent.Extent{Offset: offset, Length: int64(len(p))}); !e.Valid() || e.End() > m.Disk.Bytes {
		return fmt.Errorf("%w: read %s of a disk of %d bytes", ErrInvalid, e, m.Disk.Bytes)
	}
	for len(p) > 0 {
		i, j := m.geometry.at(offset)
		table, err := m.blocks(ctx, i)
		if err != nil {
			return err
		}
		in := m.geometry.blockOf(i, j)
		n := int(min(int64(len(p)), in.End()-offset))
		if m.zero(table[j]) {
			clear(p[:n])
		} else {
			data, err := m.read(ctx, in, table[j].Object)
			if err != nil {
				return err
			}
			copy(p[:n], data[offset-in.Offset:])
		}
		p, offset = p[n:], offset+int64(n)
	}
	return nil
}

func (m *Image) read(ctx context.Context, in extent.Extent, id object.ID) ([]byte, error) {
	data, err := readBlock(ctx, m.r, id, in.Length)
	if err != nil {
		return nil, fmt.Errorf("disk %s at %d: %w", m.Disk.Name, in.Offset, err)
	}
	return data, nil
}

// Block returns the content of the block with this number, for the caller to keep; nil for a hole.
func (m *Image) Block(ctx context.Context, number int64) ([]byte, error) {
	i, j := m.geometry.at(number * m.geometry.block)
	table, err := m.blocks(ctx, i)
	if err != nil || m.zero(table[j]) {
		return nil, err
	}
	return m.read(ctx, m.geometry.blockOf(i, j), table[j].Object)
}

// Data returns the extents of a disk that are not holes.
func (m *Image) Data(ctx context.Context) (extent.Set, error) {
	var out extent.Set
	empty := map[object.ID]bool{}
	for i, region := range m.list {
		if empty[region.Object] {
			continue
		}
		table, err := m.blocks(ctx, i)
		if err != nil {
			return extent.Set{}, err
		}
		any := false
		for j, e := range table {
			if !m.zero(e) {
				any = true
				out.Append(m.geometry.blockOf(i, j))
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
		i, j := m.geometry.at(at)
		table, err := m.blocks(ctx, i)
		if err != nil {
			return 0, false, err
		}
		z := m.zero(table[j])
		if at == e.Offset {
			zero = z
		}
		if z != zero {
			break
		}
		at = m.geometry.blockOf(i, j).End()
	}
	return min(at, e.End()) - e.Offset, zero, nil
}

// ZeroBlock says whether the block with this number is a hole. known is false if that would take reading a table.
func (m *Image) ZeroBlock(number int64) (zero, known bool) {
	i, j := m.geometry.at(number * m.geometry.block)
	table := m.known(i)
	if table == nil {
		return false, false
	}
	return m.zero(table[j]), true
}

// RegionBytes is the size of a region: the unit of Restore.
func (m *Image) RegionBytes() int64 { return m.geometry.regionBytes() }
