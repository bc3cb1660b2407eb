package nbd

import (
	"slices"

	"github.com/varvebackup/varve/internal/extent"
)

// maxFragments bounds how far out of order the chunks of one reply may be. Servers send them in order, or in a few threads.
const maxFragments = 1 << 10

// coverage is what a structured reply has brought so far: runs in order, with at least one byte between any two. It
// keeps its memory from one reply to the next.
type coverage struct {
	runs  []extent.Extent
	bytes int64
}

func (c *coverage) clearRuns() { c.runs, c.bytes = c.runs[:0], 0 }

// addExtent notes e. It fails if a byte of e is there already.
func (c *coverage) addExtent(e extent.Extent) error {
	i := len(c.runs)
	for i > 0 && c.runs[i-1].Offset > e.Offset {
		i--
	}
	afterPrevious := i > 0 && c.runs[i-1].End() == e.Offset
	beforeNext := i < len(c.runs) && e.End() == c.runs[i].Offset
	switch {
	case i > 0 && c.runs[i-1].End() > e.Offset, i < len(c.runs) && e.End() > c.runs[i].Offset:
		return protocolError("%v is twice in a reply", e)
	case afterPrevious && beforeNext:
		c.runs[i-1].Length += e.Length + c.runs[i].Length
		c.runs = slices.Delete(c.runs, i, i+1)
	case afterPrevious:
		c.runs[i-1].Length += e.Length
	case beforeNext:
		c.runs[i] = extent.Extent{Offset: e.Offset, Length: e.Length + c.runs[i].Length}
	case len(c.runs) == maxFragments:
		return protocolError("a reply in more than %d fragments", maxFragments)
	default:
		c.runs = slices.Insert(c.runs, i, e)
	}
	c.bytes += e.Length
	return nil
}
