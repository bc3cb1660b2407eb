package repository

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/maintenance"

	"github.com/varvebackup/varve/internal/repository/maintain"
	"github.com/varvebackup/varve/internal/repository/table"
)

// A garbage collection reads each table once and in parallel, however many restore points have it and however small its filter
// is.
func TestCost_collectionReadsEachTableOnce(t *testing.T) {
	t.Parallel()
	const tables, points = 200, 20
	s := newSite(t)
	config := s.connect(t, "host", !cached)
	r := s.opened(t, config)
	disk := syntheticDisk{bytes: 1 << 36, block: 256 * kib, tables: tables}
	for n := range points {
		publishSynthetic(t, r, syntheticSource(n), s.now(), disk)
	}
	fresh := s.opened(t, config)
	var mu sync.Mutex
	under, most := 0, 0
	asked := func(blob.ID) {
		mu.Lock()
		under++
		most = max(most, under)
		mu.Unlock()
		time.Sleep(time.Millisecond) // While one read waits, others can begin.
		mu.Lock()
		under--
		mu.Unlock()
	}
	took := s.costOf(t, func() error {
		s.asked.Store(&asked)
		defer s.asked.Store(nil)
		return fresh.Maintain(t.Context(), MaintenanceOptions{Mode: FullMaintenance})
	})
	pieces := listPieces(table.Geometry{Bytes: disk.bytes, BlockBytes: disk.block})
	// For each restore point: its directory, its list of regions, and its record.
	allowed := tables + points*(pieces+3) + 100
	t.Logf("%s, %d at once; at most %d GETs", took, most, allowed)
	if took.gets > allowed {
		t.Errorf("%d tables and %d restore points: %s, more than %d GETs", tables, points, took, allowed)
	}
	if most < DefaultWorkers/2 {
		t.Errorf("at most %d reads at once", most)
	}
	fresh = s.opened(t, config)
	took = s.costOf(t, func() error {
		return fresh.conn.Change(t.Context(), "test", func(ctx context.Context, w repo.DirectRepositoryWriter) error {
			return maintain.NewCollector(w, maintenance.SafetyFull, w.Time(), maintain.NewFilterOfBits(64)).Run(ctx)
		})
	})
	if took.gets > allowed {
		t.Errorf("with a filter of 64 bits: %s, more than %d GETs", took, allowed)
	}
}
