package source

import (
	"testing"

	"github.com/varvebackup/varve/internal/extent"
)

// A set of very many extents is coarser, and lacks nothing.
func TestGranules_areBounded(t *testing.T) {
	t.Parallel()
	const many = 5 * maxExtents / 2
	var g granules
	for i := range int64(many) {
		g.add(extent.Extent{Offset: 2 * i * GranuleBytes, Length: 1})
	}
	set := g.within(2*many*GranuleBytes - 512)
	if set.Len() > maxExtents {
		t.Errorf("%d extents", set.Len())
	}
	for i := int64(0); i < many; i += 101 {
		if !set.Contains(extent.Extent{Offset: 2 * i * GranuleBytes, Length: GranuleBytes}) {
			t.Fatalf("granule %d is missing", 2*i)
		}
	}
}
