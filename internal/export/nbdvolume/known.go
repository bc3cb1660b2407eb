package nbdvolume

import (
	"cmp"
	"slices"
	"sync"

	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/extent"
)

// maxKnownRegions bounds the regions that a volume remembers, of 24 bytes each.
const maxKnownRegions = 64 << 10

// knownRegions remembers what the server said. The disk is at one point in time, so that it stays true. A reader asks for
// the same regions several times: for a map, to plan what it reads, and to read it.
type knownRegions struct {
	mu sync.Mutex
	// parts are in the order of their offsets. They may overlap.
	parts []knownPart
	count int
}

// knownPart is a part of the disk, and all regions in it.
type knownPart struct {
	extent.Extent
	regions []export.Region
}

// findPart returns a part that has the byte at.
func (k *knownRegions) findPart(at int64) (knownPart, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	i, found := k.searchPart(at)
	if !found {
		i--
	}
	if i < 0 || at >= k.parts[i].End() {
		return knownPart{}, false
	}
	return k.parts[i], true
}

func (k *knownRegions) searchPart(offset int64) (int, bool) {
	return slices.BinarySearchFunc(k.parts, offset, func(p knownPart, offset int64) int { return cmp.Compare(p.Offset, offset) })
}

// addPart remembers a part. When there is no room, it forgets the others.
func (k *knownRegions) addPart(p knownPart) {
	if len(p.regions) > maxKnownRegions {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.count+len(p.regions) > maxKnownRegions {
		k.parts, k.count = nil, 0
	}
	k.count += len(p.regions)
	i, found := k.searchPart(p.Offset)
	if found {
		k.count -= len(k.parts[i].regions)
		k.parts[i] = p
		return
	}
	k.parts = slices.Insert(k.parts, i, p)
}

// addTo adds the regions within e, which begins in the part, and reports whether more are wanted.
func (p *knownPart) addTo(m *merger, e extent.Extent) bool {
	first, _ := slices.BinarySearchFunc(p.regions, e.Offset, func(r export.Region, at int64) int {
		if r.End() <= at {
			return -1
		}
		return 1
	})
	for _, r := range p.regions[first:] {
		if r.Offset >= e.End() {
			break
		}
		if !m.add(r.Intersect(e), r.Kind) {
			return false
		}
	}
	return true
}
