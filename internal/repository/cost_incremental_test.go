package repository

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/repository/table"
)

// listPieces returns how many contents a disk's list of regions has at most, including the one that names them.
func listPieces(g table.Geometry) int64 {
	const entryBytes, pieceBytes = 100, 128 * kib // An entry has offset, length and a name of 34 digits.
	return int64(g.RegionCount()*entryBytes+pieceBytes-1)/pieceBytes + 1
}

// An incremental reads the list of the disk's regions and the tables of the regions that change, and no others.
func TestCost_incrementalReadsTheTablesThatChange(t *testing.T) {
	t.Parallel()
	for name, disk := range map[string]syntheticDisk{
		"small disk":  {bytes: 1 << 40, block: 256 * kib, tables: 16},
		"more tables": {bytes: 1 << 40, block: 256 * kib, tables: 1024},
		"large disk":  {bytes: MaxDiskBytes, block: mib, tables: 256},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			config := s.connect(t, "host", !cached)
			publishSynthetic(t, s.opened(t, config), testSource, s.now(), disk)
			for n, blocks := range []int64{1, 5} {
				r := s.opened(t, config)
				var changed extent.Set
				for i := range blocks {
					changed.Append(extent.Extent{Offset: disk.bytes / blocks * i, Length: 1})
				}
				source := DiskSource{
					Name: "root", Bytes: disk.bytes, Reader: zeroReader{}, Identity: "a",
					Change: strconv.Itoa(n + 2), Changes: &Changes{Since: strconv.Itoa(n + 1), Set: changed, Exclusive: true}, // not what the tables describe
				}
				var p *RestorePoint
				took := s.costOf(t, func() (err error) {
					p, err = r.Backup(t.Context(), Request{Source: testSource, Time: s.now().Add(time.Duration(n+1) * time.Second), Disks: []DiskSource{source}})
					return err
				})
				if p.Disks[0].FullReason != "" || p.Disks[0].Stats.ReadBytes != blocks*disk.block {
					t.Fatalf("%+v", p.Disks[0])
				}
				const rest = 40 // Indexes and manifests are read again whenever the session has stored something.
				most := listPieces(table.Geometry{Bytes: disk.bytes, BlockBytes: disk.block}) + blocks + rest
				t.Logf("%d changed blocks: %s; at most %d GETs", blocks, took, most)
				if took.gets > most {
					t.Errorf("%d changed blocks of %d tables took %d GETs, more than %d", blocks, disk.tables, took.gets, most)
				}
			}
		})
	}
}

// zeroReader is a source of zeroes.
type zeroReader struct{}

func (zeroReader) ReadAt(_ context.Context, p []byte, _ int64) error {
	clear(p)
	return nil
}
