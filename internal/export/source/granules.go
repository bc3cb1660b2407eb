package source

import "github.com/varvebackup/varve/internal/extent"

const (
	// GranuleBytes is the unit of Data and Changes.
	GranuleBytes = 64 << 10
	// MaxBytes is the largest disk. It bounds what a peer can have a reader plan for.
	MaxBytes = 64 << 40
	// maxExtents bounds a set: 16 bytes each.
	maxExtents = 1 << 20
)

// granules collects extents in whole granules. A set that becomes too large gets larger granules: it then says of more bytes that they may
// be data, or may have changed, and never of fewer.
type granules struct {
	set   extent.Set
	bytes int64 // of a granule
}

// add adds an extent that begins behind those before, and ends at MaxBytes at the latest.
func (g *granules) add(e extent.Extent) {
	if g.bytes == 0 {
		g.bytes = GranuleBytes
	}
	g.set.Append(e.Widen(g.bytes, MaxBytes))
	for g.set.Len() > maxExtents {
		g.bytes *= 2
		g.set = g.set.Widen(g.bytes, MaxBytes)
	}
}

// within returns the set as it is on a disk of this size.
func (g *granules) within(size int64) extent.Set {
	return g.set.Intersect(extent.NewSet(extent.Extent{Length: size}))
}
