package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/varvebackup/varve/bench/report"
	"github.com/varvebackup/varve/internal/extent"
)

// The ratio of each row is above 1 where Varve's runtime is better. A row that one runtime lacks is an error, and not a
// row without a peer.
func TestCompareHalves(t *testing.T) {
	t.Parallel()
	own, theirs := &half{Figures: map[string]report.Sample{}}, &half{Figures: map[string]report.Sample{}}
	for _, r := range rows {
		own.Figures[r.id], theirs.Figures[r.id] = report.Sample{2, 4, 3}, report.Sample{6}
	}
	all, err := compareHalves(own, theirs)
	if err != nil || len(all) != len(rows) {
		t.Fatalf("%d rows: %v", len(all), err)
	}
	for i, r := range all {
		want := 2.0
		if rows[i].larger {
			want = 0.5
		}
		if r.Ratio != want || r.Value != 3 || r.PeerValue != 6 || r.Min != 2 || r.Max != 4 {
			t.Errorf("%+v", r)
		}
	}
	delete(theirs.Figures, rows[1].id)
	if _, err := compareHalves(own, theirs); err == nil {
		t.Errorf("nothing is wrong without KubeVirt's figures of %s", rows[1].id)
	}
}

func TestCutPieces(t *testing.T) {
	t.Parallel()
	got := cutPieces(extent.NewSet(extent.Extent{Offset: 5, Length: 7}, extent.Extent{Offset: mib, Length: 2*mib + 1}))
	want := []extent.Extent{
		{Offset: 5, Length: 7}, {Offset: mib, Length: mib}, {Offset: 2 * mib, Length: mib}, {Offset: 3 * mib, Length: 1},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
