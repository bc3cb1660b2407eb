package serve

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"
	"sync"

	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/repository"
)

const (
	// clusterBytes is the unit in which the overlay takes over from the disk below.
	clusterBytes = 64 << 10
	// mapMagic begins the file that says which clusters the overlay has.
	mapMagic   = "varvecow"
	mapVersion = 1
)

// clusters says which parts of a disk an overlay has. A cluster that it has stays.
type clusters struct {
	token string

	mu      sync.RWMutex
	bits    []uint64
	changed bool // since changes
}

func newClusters(token string, size int64) *clusters {
	return &clusters{token: token, bits: make([]uint64, (size+64*clusterBytes-1)/(64*clusterBytes))}
}

// encode is the map as docs/format.md has it.
func (c *clusters) encode() []byte {
	body := binary.LittleEndian.AppendUint32(nil, mapVersion)
	body = binary.LittleEndian.AppendUint32(body, uint32(len(c.token)))
	body = append(body, c.token...)
	for _, w := range c.bits {
		body = binary.LittleEndian.AppendUint64(body, w)
	}
	out := binary.LittleEndian.AppendUint32([]byte(mapMagic), crc32.ChecksumIEEE(body))
	return append(out, body...)
}

func (c *clusters) decode(data []byte) error {
	head := len(mapMagic) + 4
	if len(data) < head+8 || string(data[:len(mapMagic)]) != mapMagic || binary.LittleEndian.Uint32(data[len(mapMagic):]) != crc32.ChecksumIEEE(data[head:]) {
		return fmt.Errorf("%w: its map is damaged", repository.ErrCorrupt)
	}
	body := data[head:]
	if version := binary.LittleEndian.Uint32(body); version != mapVersion {
		return fmt.Errorf("%w: its map has version %d, and this program knows version %d", repository.ErrInvalid, version, mapVersion)
	}
	n := int64(binary.LittleEndian.Uint32(body[4:]))
	body = body[8:]
	if n > int64(len(body)) || string(body[:n]) != c.token {
		return fmt.Errorf("%w: it belongs to another disk, %q", repository.ErrInvalid, body[:min(n, int64(len(body)))])
	}
	if body = body[n:]; len(body) != 8*len(c.bits) {
		return fmt.Errorf("%w: its map is for a disk of another size", repository.ErrInvalid)
	}
	for i := range c.bits {
		c.bits[i] = binary.LittleEndian.Uint64(body[8*i:])
	}
	return nil
}

func (c *clusters) none() bool {
	return !slices.ContainsFunc(c.bits, func(w uint64) bool { return w != 0 })
}

// changes is the map if it has changed since the last call, and nil if not.
func (c *clusters) changes() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.changed {
		return nil
	}
	c.changed = false
	return c.encode()
}

// touch makes the next changes return the map.
func (c *clusters) touch() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changed = true
}

// add adds all clusters that e has a part of.
func (c *clusters) add(e extent.Extent) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for n := e.Offset / clusterBytes; n*clusterBytes < e.End(); n++ {
		c.bits[n/64] |= 1 << (n % 64)
	}
	c.changed = true
}

// run is how long from e.Offset on, up to e's end, all clusters are there, or none is.
func (c *clusters) run(e extent.Extent) (length int64, here bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	has := func(at int64) bool { return c.bits[at/(64*clusterBytes)]&(1<<(at/clusterBytes%64)) != 0 }
	here = has(e.Offset)
	at := e.Offset
	for at < e.End() && has(at) == here {
		at = (at/clusterBytes + 1) * clusterBytes
	}
	return min(at, e.End()) - e.Offset, here
}

// all says whether all of e is there.
func (c *clusters) all(e extent.Extent) bool {
	n, here := c.run(e)
	return here && n == e.Length
}
