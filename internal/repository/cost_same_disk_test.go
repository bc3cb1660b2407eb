package repository

import (
	"testing"
	"time"

	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/repository/table"
)

// Distinguishing a disk from others that have its checkpoint costs a few requests, whatever they have in common and however much
// has changed.
func TestCost_tellingDisksApart(t *testing.T) {
	t.Parallel()
	const regions, block = 64, 256 * kib
	whole := extent.NewSet(extent.Extent{Length: regions * RegionBlocks * block})
	// filled is a disk with different data in each region, which also differs from other disks'.
	filled := func(seed byte) DiskSource {
		s, data := newSparse(regions*RegionBlocks*block), extent.Set{}
		for i := range int64(regions) {
			s.write([]byte{seed, byte(i)}, i*RegionBlocks*block)
			data.Append(extent.Extent{Offset: i * RegionBlocks * block, Length: block})
		}
		return DiskSource{Bytes: s.bytes, Reader: s, Data: &data}
	}
	blank := func(bytes int64) DiskSource {
		return DiskSource{Bytes: bytes, Reader: newSparse(bytes), Data: &extent.Set{}}
	}
	for name, c := range map[string]struct {
		disk, other       DiskSource
		changed           extent.Set
		block, otherBlock int64
	}{
		"all of it has changed":              {disk: filled(1), other: filled(2), changed: whole, block: block, otherBlock: block},
		"two without data, of other blocks":  {disk: blank(1 << 40), other: blank(1 << 40), block: block, otherBlock: 4 * mib},
		"two without data, of larger blocks": {disk: blank(1 << 40), other: blank(1 << 40), block: 4 * mib, otherBlock: block},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			config := s.connect(t, "host", !cached)
			backUp := func(d DiskSource, name, change string, block int64, changes *Changes) cost {
				d.Name, d.Change, d.Changes = name, change, changes
				r := s.opened(t, config)
				return s.costOf(t, func() error {
					p, err := r.Backup(t.Context(), Request{Source: testSource, Time: s.now(), Disks: []DiskSource{d}, BlockBytes: block})
					if err == nil && changes != nil && p.Disks[0].FullReason != "" {
						t.Errorf("full: %s", p.Disks[0].FullReason)
					}
					return err
				})
			}
			s.move(time.Second)
			backUp(c.other, "b", "c1", c.otherBlock, nil)
			backUp(c.disk, "a", "c1", c.block, nil)
			exclusive := backUp(c.disk, "a", "c2", c.block, &Changes{Since: "c1", Set: c.changed, Exclusive: true})
			backUp(c.other, "b", "c2", c.otherBlock, nil)
			took := backUp(c.disk, "a", "c3", c.block, &Changes{Since: "c2", Set: c.changed})
			t.Logf("%s; %s without a look at the other", took, exclusive)
			// The other disk's list, a table and a block of each disk, and the samples.
			if most := exclusive.gets + listPieces(table.Geometry{Bytes: c.other.Bytes, BlockBytes: c.otherBlock}) + 2*sampleCount + 20; took.gets > most {
				t.Errorf("%d GETs, more than %d", took.gets, most)
			}
		})
	}
}
