package repository

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/varvebackup/varve/internal/extent"
)

const (
	kib = 1 << 10
	mib = 1 << 20
	gib = 1 << 30

	// RegionBlocks is how many blocks a region has; a disk's last region may have fewer.
	RegionBlocks = 256
	// MaxDiskBytes is the largest disk.
	MaxDiskBytes = 64 << 40
)

// blockSizes maps the block sizes on offer, in bytes, to the names of the kopia splitters that cut them.
var blockSizes = map[int64]string{
	256 * kib: "FIXED-256K",
	mib:       "FIXED-1M",
	4 * mib:   "FIXED-4M",
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
	return 0, fmt.Errorf("%w: block size %q: %s are offered", ErrInvalid, name, strings.Join(BlockSizes(), ", "))
}

func blockSizeName(bytes int64) string {
	if bytes < mib {
		return fmt.Sprintf("%dKiB", bytes/kib)
	}
	return fmt.Sprintf("%dMiB", bytes/mib)
}

// geometry describes how a disk of size bytes is cut. Its last block and its last region end where the disk ends.
type geometry struct {
	size, block int64
}

func newGeometry(size, block int64) (geometry, error) {
	switch {
	case size <= 0 || size > MaxDiskBytes:
		return geometry{}, fmt.Errorf("%w: a disk of %d bytes: 1 byte to %d TiB can be stored", ErrInvalid, size, MaxDiskBytes>>40)
	case blockSizes[block] == "":
		return geometry{}, fmt.Errorf("%w: blocks of %d bytes: %s are offered", ErrInvalid, block, strings.Join(BlockSizes(), ", "))
	}
	return geometry{size: size, block: block}, nil
}

func (g geometry) regionBytes() int64 { return g.block * RegionBlocks }

// regions returns how many regions the disk has.
func (g geometry) regions() int { return int((g.size + g.regionBytes() - 1) / g.regionBytes()) }

// region returns the bytes of region i.
func (g geometry) region(i int) extent.Extent {
	return g.clip(extent.Extent{Offset: int64(i) * g.regionBytes(), Length: g.regionBytes()})
}

// blocks returns how many blocks region i has.
func (g geometry) blocks(i int) int { return int((g.region(i).Length + g.block - 1) / g.block) }

// blockOf returns the bytes of block j of region i.
func (g geometry) blockOf(i, j int) extent.Extent {
	return g.clip(extent.Extent{Offset: int64(i)*g.regionBytes() + int64(j)*g.block, Length: g.block})
}

func (g geometry) clip(e extent.Extent) extent.Extent {
	e.Length = min(e.Length, g.size-e.Offset)
	return e
}

// at returns the region that holds the byte at offset, and the block within that region.
func (g geometry) at(offset int64) (region, block int) {
	return int(offset / g.regionBytes()), int(offset % g.regionBytes() / g.block)
}
