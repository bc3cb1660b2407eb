package table

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
)

const (
	// RegionBlocks is how many blocks a region has; a disk's last region may have fewer.
	RegionBlocks = 256
	// MaxDiskBytes is the largest disk.
	MaxDiskBytes = 64 << 40

	// DefaultWorkers is how many requests are under way at once unless somebody says otherwise. It is meant to exceed the number
	// of processors, because readers wait.
	DefaultWorkers = 8
)

// blockSizes maps the block sizes on offer, in bytes, to the names of the kopia splitters that cut them.
var blockSizes = map[int64]string{
	256 << 10: "FIXED-256K",
	1 << 20:   "FIXED-1M",
	4 << 20:   "FIXED-4M",
}

// BlockSizes returns the names of the block sizes on offer, the smallest first.
func BlockSizes() []string {
	var names []string
	for _, n := range slices.Sorted(maps.Keys(blockSizes)) {
		names = append(names, blockSizeName(n))
	}
	return names
}

// ParseBlockSize returns the block size in bytes for one of the names of BlockSizes.
func ParseBlockSize(name string) (int64, error) {
	for n := range blockSizes {
		if name == blockSizeName(n) {
			return n, nil
		}
	}
	return 0, fmt.Errorf("%w: block size %q: %s are offered", errclass.Invalid, name, strings.Join(BlockSizes(), ", "))
}

func blockSizeName(bytes int64) string {
	if bytes < 1<<20 {
		return fmt.Sprintf("%dKiB", bytes>>10)
	}
	return fmt.Sprintf("%dMiB", bytes>>20)
}

// Geometry describes how a disk is cut. Its last block and its last region end where the disk ends.
type Geometry struct {
	// Bytes is the disk's size, BlockBytes that of its blocks.
	Bytes, BlockBytes int64
}

// NewGeometry returns the geometry of a disk. A size that cannot be stored, and a block size that is not on offer, are
// errclass.Invalid.
func NewGeometry(size, block int64) (Geometry, error) {
	switch {
	case size <= 0 || size > MaxDiskBytes:
		return Geometry{}, fmt.Errorf("%w: a disk of %d bytes: 1 byte to %d TiB can be stored", errclass.Invalid, size, MaxDiskBytes>>40)
	case blockSizes[block] == "":
		return Geometry{}, fmt.Errorf("%w: blocks of %d bytes: %s are offered", errclass.Invalid, block, strings.Join(BlockSizes(), ", "))
	}
	return Geometry{Bytes: size, BlockBytes: block}, nil
}

// RegionBytes returns how many bytes a region has, if it is not the last one.
func (g Geometry) RegionBytes() int64 { return g.BlockBytes * RegionBlocks }

// runBytes is how much of a disk is read and written at once, if its blocks are not larger. It is a compromise: each request costs
// time, each worker has memory for a run, and what does not fit into the processor's caches is copied slowly.
const runBytes = 1 << 20

// RunBytes returns how long a run is: a piece of a disk that is read or written at once. A region has a whole number of them.
func (g Geometry) RunBytes() int64 { return max(runBytes, g.BlockBytes) }

// RunOf returns the run of its region that block j of the region belongs to.
func (g Geometry) RunOf(j int) int { return int(int64(j) * g.BlockBytes / g.RunBytes()) }

// RegionCount returns how many regions the disk has.
func (g Geometry) RegionCount() int { return int((g.Bytes + g.RegionBytes() - 1) / g.RegionBytes()) }

// Region returns the bytes of region i.
func (g Geometry) Region(i int) extent.Extent {
	return g.clipToDisk(extent.Extent{Offset: int64(i) * g.RegionBytes(), Length: g.RegionBytes()})
}

// BlockCount returns how many blocks region i has.
func (g Geometry) BlockCount(i int) int {
	return int((g.Region(i).Length + g.BlockBytes - 1) / g.BlockBytes)
}

// Block returns the bytes of block j of region i.
func (g Geometry) Block(i, j int) extent.Extent {
	return g.clipToDisk(extent.Extent{Offset: int64(i)*g.RegionBytes() + int64(j)*g.BlockBytes, Length: g.BlockBytes})
}

func (g Geometry) clipToDisk(e extent.Extent) extent.Extent {
	e.Length = min(e.Length, g.Bytes-e.Offset)
	return e
}

// Locate returns the region that holds the byte at offset, and the block within that region.
func (g Geometry) Locate(offset int64) (region, block int) {
	return int(offset / g.RegionBytes()), int(offset % g.RegionBytes() / g.BlockBytes)
}
