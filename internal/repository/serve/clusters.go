package serve

import (
	"sync"

	"github.com/varvebackup/varve/internal/extent"
)

// clusterBytes is the unit in which the overlay takes over from the disk below.
const clusterBytes = 64 << 10

// clusters says which parts of a disk an overlay has. A cluster that it has stays.
type clusters struct {
	token string
	// size is the disk's in bytes.
	size int64

	mu sync.RWMutex
	// bits are in windows of windowWords: what a sector of the map has.
	bits []uint64
	// used says which windows have clusters, and taken is how many of them do.
	used  []bool
	taken int64
	// fresh are the windows with clusters that the map has not got.
	fresh map[int]struct{}
}

func newClusters(token string, size int64) *clusters {
	windows := (size + windowBytes - 1) / windowBytes
	return &clusters{token: token, size: size, bits: make([]uint64, windows*windowWords), used: make([]bool, windows), fresh: map[int]struct{}{}}
}

func (c *clusters) isEmpty() bool { return c.taken == 0 }

// windowBits returns the bits of a window.
func (c *clusters) windowBits(n int) []uint64 { return c.bits[n*windowWords : (n+1)*windowWords] }

// markUsed notes that a window has clusters.
func (c *clusters) markUsed(window int) {
	if !c.used[window] {
		c.used[window] = true
		c.taken++
	}
}

// markFresh makes the next takeChanges return these windows again.
func (c *clusters) markFresh(windows []int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range windows {
		c.fresh[n] = struct{}{}
	}
}

// addExtent adds all clusters that e has a part of.
func (c *clusters) addExtent(e extent.Extent) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for n := e.Offset / clusterBytes; n*clusterBytes < e.End(); n++ {
		if word, bit := n/64, uint64(1)<<(n%64); c.bits[word]&bit == 0 {
			c.bits[word] |= bit
			c.fresh[int(word/windowWords)] = struct{}{}
			c.markUsed(int(word / windowWords))
		}
	}
}

// nextRun returns for how many bytes from e.Offset on, up to e's end, all clusters are there, or none is.
func (c *clusters) nextRun(e extent.Extent) (length int64, here bool) {
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

// hasExtent says whether all of e is there.
func (c *clusters) hasExtent(e extent.Extent) bool {
	n, here := c.nextRun(e)
	return here && n == e.Length
}
