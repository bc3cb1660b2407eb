package serve

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"

	"github.com/varvebackup/varve/internal/errclass"
)

// The map's file is a header and then sectors, each with the clusters of one window of the disk. All sectors together, in any order, are the
// map: a cluster that the overlay has stays. So a flush appends the windows that have changed, and what it costs does not grow with the
// disk. docs/format.md has the bytes.
const (
	// mapMagic begins the file that says which clusters the overlay has.
	mapMagic   = "varvecow"
	mapVersion = 1
	// sectorBytes is what storage writes as a whole or not at all: a sector is there, or it is zeroes, or behind the end of the file.
	sectorBytes = 512
	// windowWords are the words of 64 clusters that fit into a sector, and windowBytes the part of the disk that they stand for.
	windowWords = (sectorBytes - 16) / 8
	windowBytes = windowWords * 64 * clusterBytes
	// maxTokenBytes fits into the header with what else is in it.
	maxTokenBytes = sectorBytes - 40
	// slackSectors are how many sectors more than twice the smallest map a file may have before it is written anew.
	slackSectors = 2048
)

// layout is what is known of a map's file.
type layout struct {
	// sectors is where the next flush is appended, counted with the header; 0: the file is written anew.
	sectors int64
	// sum is the checksum in the header.
	sum uint32
}

// update is what a flush adds to the map.
type update struct {
	data []byte
	// at is the sector that data begins with; 0: data is a whole file.
	at   int64
	next layout
	// windows are those that were fresh.
	windows []int
}

// takeChanges returns what a map's file has not got, and no longer counts it as fresh; nil: the file has everything.
func (c *clusters) takeChanges(l layout) *update {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.fresh) == 0 {
		return nil
	}
	u := &update{at: l.sectors, next: l, windows: slices.Sorted(maps.Keys(c.fresh))}
	clear(c.fresh)
	u.next.sectors += int64(len(u.windows))
	if l.sectors == 0 || u.next.sectors > 2*c.taken+slackSectors {
		u.at = 0
		u.data, u.next = c.encodeMap()
		return u
	}
	for _, n := range u.windows {
		u.data = c.appendSector(u.data, n, l)
	}
	return u
}

// encodeMap returns the smallest file with the map.
func (c *clusters) encodeMap() ([]byte, layout) {
	out := c.encodeHeader()
	l := layout{sectors: 1, sum: crc32.ChecksumIEEE(out[len(mapMagic)+4:])}
	binary.LittleEndian.PutUint32(out[len(mapMagic):], l.sum)
	for n, used := range c.used {
		if used {
			out = c.appendSector(out, n, l)
		}
	}
	l.sectors = int64(len(out)) / sectorBytes
	return out, l
}

// encodeHeader returns the header of a map's file that is about to be written, without its checksum.
func (c *clusters) encodeHeader() []byte {
	out := append([]byte(mapMagic), make([]byte, 4)...)
	out = binary.LittleEndian.AppendUint32(out, mapVersion)
	out = binary.LittleEndian.AppendUint32(out, uint32(len(c.token)))
	out = append(out, c.token...)
	out = binary.LittleEndian.AppendUint64(out, uint64(c.size))
	out = binary.LittleEndian.AppendUint64(out, uint64(c.taken))
	return append(out, make([]byte, sectorBytes-len(out))...)
}

// appendSector appends a window to a file, or to a part of it, that has l before it.
func (c *clusters) appendSector(out []byte, window int, l layout) []byte {
	begin := len(out)
	out = binary.LittleEndian.AppendUint64(out, uint64(window))
	out = binary.LittleEndian.AppendUint32(out, uint32(l.sectors))
	for _, w := range c.windowBits(window) {
		out = binary.LittleEndian.AppendUint64(out, w)
	}
	return binary.LittleEndian.AppendUint32(out, sumSector(l.sum, out[begin:]))
}

// sumSector returns the checksum of what a sector has before it. It continues the header's, so a sector of another map does not fit.
func sumSector(header uint32, sector []byte) uint32 {
	return crc32.Update(header, crc32.IEEETable, sector)
}

// decodeMap reads a map's file.
func (c *clusters) decodeMap(data []byte) (layout, error) {
	const head = len(mapMagic) + 4
	if len(data) < sectorBytes || string(data[:len(mapMagic)]) != mapMagic {
		return layout{}, fmt.Errorf("%w: its map is damaged", errclass.Corrupt)
	}
	l := layout{sum: binary.LittleEndian.Uint32(data[len(mapMagic):])}
	header := data[head:sectorBytes]
	if crc32.ChecksumIEEE(header) != l.sum {
		return layout{}, fmt.Errorf("%w: its map is damaged", errclass.Corrupt)
	}
	if version := binary.LittleEndian.Uint32(header); version != mapVersion {
		return layout{}, fmt.Errorf("%w: its map has version %d, and this program knows %d", errclass.Invalid, version, mapVersion)
	}
	n, body := int64(binary.LittleEndian.Uint32(header[4:])), header[8:]
	if n > int64(len(body)) || string(body[:n]) != c.token {
		return layout{}, fmt.Errorf("%w: it belongs to another disk, %q", errclass.Invalid, body[:min(n, int64(len(body)))])
	}
	var err error
	if l.sectors, err = c.decodeSectors(data, body[n:], l.sum); err == nil && c.hasBitsBehindEnd() {
		err = fmt.Errorf("%w: its map has clusters behind the end of the disk", errclass.Corrupt)
	}
	return l, err
}

// decodeSectors reads the sectors, and returns how many of them the next flush leaves as they are. What a flush that did not end has left
// may have holes, which are zeroes, and ends anywhere; everything else was flushed and must be there.
func (c *clusters) decodeSectors(data, rest []byte, sum uint32) (int64, error) {
	if len(rest) < 16 {
		return 0, fmt.Errorf("%w: its map is cut off", errclass.Corrupt)
	}
	if size := binary.LittleEndian.Uint64(rest); size != uint64(c.size) {
		return 0, fmt.Errorf("%w: its map is for a disk of another size, %d bytes", errclass.Invalid, size)
	}
	flushed := 1 + binary.LittleEndian.Uint64(rest[8:])
	whole, all := uint64(0), uint64(len(data)/sectorBytes)
	for i := uint64(1); i < all; i++ {
		sector := data[i*sectorBytes : (i+1)*sectorBytes]
		if !slices.ContainsFunc(sector, func(b byte) bool { return b != 0 }) {
			if whole == 0 {
				whole = i
			}
			continue
		}
		window := binary.LittleEndian.Uint64(sector)
		if sumSector(sum, sector[:sectorBytes-4]) != binary.LittleEndian.Uint32(sector[sectorBytes-4:]) || window >= uint64(len(c.used)) {
			return 0, fmt.Errorf("%w: its map is damaged at %d", errclass.Corrupt, i*sectorBytes)
		}
		flushed = max(flushed, uint64(binary.LittleEndian.Uint32(sector[8:])))
		for j, words := 0, c.windowBits(int(window)); j < windowWords; j++ {
			words[j] |= binary.LittleEndian.Uint64(sector[12+8*j:])
		}
		c.markUsed(int(window))
	}
	if whole == 0 {
		whole = all
	}
	if whole < flushed {
		return 0, fmt.Errorf("%w: its map lacks sector %d, and %d of them were flushed", errclass.Corrupt, whole, flushed)
	}
	return int64(whole), nil
}

// hasBitsBehindEnd says whether there are clusters behind the end of the disk.
func (c *clusters) hasBitsBehindEnd() bool {
	n := (c.size + clusterBytes - 1) / clusterBytes
	return (n%64 > 0 && c.bits[n/64]>>(n%64) != 0) || slices.ContainsFunc(c.bits[(n+63)/64:], func(w uint64) bool { return w != 0 })
}
