// Package export describes what a pull backup offers of a disk at one point in time: which regions it has, and what
// they hold. A launcher offers volumes, the tunnel (package tunnel) carries them to another pod, and the export server
// or a mover reads them there.
//
// Offsets and lengths are bytes. Errors have the classes of errclass.
package export

import (
	"context"
	"hash/crc32"

	"github.com/varvebackup/varve/internal/extent"
)

// MaxChunkBytes is the longest Data of a Chunk.
const MaxChunkBytes = 1 << 20

// Kind says what is known of a region.
type Kind uint8

const (
	// Data may hold anything. In an incremental backup it may have changed since the base.
	Data Kind = iota + 1
	// Zero reads as zeroes. In an incremental backup it may have changed since the base.
	Zero
	// Clean has not changed since the base. Only an incremental backup has clean regions.
	Clean
)

// Region is a part of a volume.
type Region struct {
	extent.Extent
	Kind Kind
}

// Info describes a volume. It does not change.
type Info struct {
	// Name is the volume's name in the virtual machine.
	Name string
	// Bytes is the size of the disk.
	Bytes int64
	// Incremental says that the backup has only what changed since a base.
	Incremental bool
	// PointInTime is opaque and unique: two volumes with the same value hold the same bytes.
	PointInTime string
}

// Chunk is the content of an extent.
type Chunk struct {
	extent.Extent
	// Data has Length bytes, or is nil: then the extent reads as zeroes.
	Data []byte
	// Checksum is that of Data, as Checksum computes it; 0 for zeroes. It is computed where the disk is read.
	Checksum uint32
}

// Checksum returns the CRC-32 of data with the IEEE polynomial, as zlib, gzip and PNG have it: every language that reads
// a backup has it in its standard library.
func Checksum(data []byte) uint32 { return crc32.ChecksumIEEE(data) }

// Scope says how much of an extent Read sends.
type Scope uint8

const (
	// Everything is every byte, also what has not changed.
	Everything Scope = iota
	// Changed is every byte but those of clean regions. Of a full backup that is everything.
	Changed
)

// Volume is a disk at one point in time. Every method may be called from any goroutine, at any time, any number of
// times: the content stays the same, and so do the regions, except that one that was Zero may be Data in a later call.
type Volume interface {
	Info() Info
	// Regions calls report for the regions of e, in order, without gaps and without overlaps. A neighbour of the same kind
	// is part of the same region, as far as e goes. It ends early when report returns false. How long it takes depends on
	// how many regions it reports, and not on where e begins.
	Regions(ctx context.Context, e extent.Extent, report func(Region) bool) error
	// Read calls sink with the content of e, in order and without overlaps. A chunk and its Data are the sink's until it
	// returns. An error of sink ends the reading and is returned as it is. A sink that takes its time slows this call
	// down, and no other one.
	Read(ctx context.Context, e extent.Extent, scope Scope, sink func(Chunk) error) error
}

// Volumes are the volumes of one backup.
type Volumes interface {
	// Open returns the volume with this name. NotFound: the backup has none. Transient: who has it cannot be reached now.
	Open(ctx context.Context, name string) (Volume, error)
}
