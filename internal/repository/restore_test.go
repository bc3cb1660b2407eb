package repository

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kopia/kopia/repo/content"

	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/internal/repository/table"
)

// A restore reports that it has written as much as was counted before, whole or in part.
func TestDataBytesAreWhatRestoreWrites(t *testing.T) {
	t.Parallel()
	r, _ := newRepository(t)
	random := rand.New(rand.NewPCG(7, 8))
	// Region 2 is the same as region 0, region 1 is a hole, and region 3 is the disk's short end.
	disk := &memory{data: make([]byte, 192*mib+100)}
	disk.write(random, extent.Extent{Offset: mib, Length: 512 * kib}, false)
	copy(disk.data[128*mib:], disk.data[:64*mib])
	disk.write(random, extent.Extent{Offset: 192 * mib, Length: 100}, false)
	p, err := r.Backup(t.Context(), Request{Source: testSource, Disks: []DiskSource{disk.source(false)}})
	if err != nil {
		t.Fatal(err)
	}
	image, err := r.Image(t.Context(), p.Disks[0])
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		done func(int) bool
		want int64
	}{
		"everything":  {nil, 2*512*kib + 100},
		"the rest":    {func(i int) bool { return i == 0 }, 512*kib + 100},
		"only a hole": {func(i int) bool { return i != 1 }, 0},
	} {
		got, err := image.DataBytes(t.Context(), c.done)
		if err != nil || got != c.want {
			t.Errorf("%s: %d bytes, want %d: %v", name, got, c.want, err)
		}
		var wrote atomic.Int64
		target := &collect{data: make([]byte, len(disk.data))}
		if err := image.Restore(t.Context(), target, RestoreOptions{Done: c.done, Wrote: func(n int64) { wrote.Add(n) }}); err != nil || wrote.Load() != c.want {
			t.Errorf("%s: %d bytes written, want %d: %v", name, wrote.Load(), c.want, err)
		}
	}
}

// Blocks lie in the packs in about the order of the disk, however many are stored in parallel, so that a restore fetches many at
// once.
func TestPacksAreInTheOrderOfTheDisk(t *testing.T) {
	t.Parallel()
	r, _ := newRepository(t)
	const regions = 3
	disk := &memory{data: make([]byte, regions*RegionBlocks*256*kib)}
	for at := 0; at < len(disk.data); at += 256 * kib {
		copy(disk.data[at:], fmt.Sprintf("block at %d", at))
	}
	p, err := r.Backup(t.Context(), Request{Source: testSource, Time: time.Unix(1, 0), Disks: []DiskSource{disk.source(false)}, Workers: 8})
	if err != nil {
		t.Fatal(err)
	}
	image, err := r.Image(t.Context(), p.Disks[0])
	if err != nil {
		t.Fatal(err)
	}
	for i := range regions {
		entries, err := image.ReadRegion(t.Context(), i)
		if err != nil {
			t.Fatal(err)
		}
		var infos []content.Info
		for _, e := range entries {
			id, err := table.BlockContent(e.Object)
			if err != nil {
				t.Fatal(err)
			}
			infos = append(infos, r.conn.Reader().Locate(t.Context(), id))
		}
		slices.SortFunc(infos, engine.CompareLocations)
		runs := 1
		for j := 1; j < len(infos); j++ {
			if !r.conn.Reader().FetchedTogether(&infos[j-1], &infos[j-1], &infos[j]) {
				runs++
			}
		}
		if most := RegionBlocks / 4; runs > most {
			t.Errorf("region %d of %d blocks is in %d pieces, more than %d", i, RegionBlocks, runs, most)
		}
	}
}
