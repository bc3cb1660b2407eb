package nbdvolume

import (
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/export/exporttest"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/test/verdict"
)

// Who has asked for the map reads without asking the server again.
func TestRegions_areAskedForOnce(t *testing.T) {
	t.Parallel()
	const size = 8 << 20
	var queries atomic.Int64
	b := &backend{Volume: exporttest.NewVolume("root", size, true, 7), onStatus: func() { queries.Add(1) }}
	v := open(t, b, "bitmap")
	regionsOf(t, v, extent.Extent{Length: size})
	asked := queries.Load()
	random := rand.New(rand.NewPCG(7, 7))
	for range 200 {
		e := extent.Extent{Offset: random.Int64N(size)}
		e.Length = 1 + random.Int64N(size-e.Offset)
		if d := cmp.Diff(regionsOf(t, b.Volume, e), regionsOf(t, v, e)); d != "" {
			verdict.Fatalf(t, "%v:\n%s", e, d)
		}
	}
	readAll(t, v, extent.Extent{Length: size}, export.Changed)
	if now := queries.Load(); asked == 0 || now != asked {
		t.Errorf("%d queries for the map, and %d more after it", asked, now-asked)
	}
}

// What was asked for in parts that overlap and touch is the same as what is asked for as a whole.
func TestRegions_ofPartsThatAreKnown(t *testing.T) {
	t.Parallel()
	const size = 8 << 20
	random := rand.New(rand.NewPCG(8, 8))
	for seed := range uint64(20) {
		b := &backend{Volume: exporttest.NewVolume("root", size, true, seed)}
		v := open(t, b, "bitmap")
		for range 40 {
			e := extent.Extent{Offset: random.Int64N(size/512) * 512}
			e.Length = min(1+random.Int64N(1<<20), size-e.Offset)
			if d := cmp.Diff(regionsOf(t, b.Volume, e), regionsOf(t, v, e)); d != "" {
				verdict.Fatalf(t, "%v:\n%s", e, d)
			}
		}
	}
}

func TestKnownRegions_areBounded(t *testing.T) {
	t.Parallel()
	v := open(t, &scattered{bytes: 1 << 40}, "bitmap")
	e := extent.Extent{Length: 3 * maxKnownRegions / 2 * scatter}
	count := 0
	err := v.Regions(t.Context(), e, func(export.Region) bool {
		count++
		return true
	})
	if err != nil || count != 3*maxKnownRegions {
		t.Errorf("%d regions: %v", count, err)
	}
	held := 0
	for _, p := range v.known.parts {
		held += len(p.regions)
	}
	if held == 0 || held > maxKnownRegions || held != v.known.count {
		t.Errorf("%d regions are held, and %d counted", held, v.known.count)
	}
}
