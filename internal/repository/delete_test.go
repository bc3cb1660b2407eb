package repository

import "testing"

// A connection that has not seen a restore point yet deletes it, and not its record alone.
func TestDelete_whatThisConnectionHasNotSeen(t *testing.T) {
	t.Parallel()
	s := newLongSite(t)
	p, err := s.r.Backup(t.Context(), Request{Source: testSource, Disks: []DiskSource{s.disk(1).source(false)}})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.others.Delete(t.Context(), p.ID); err != nil {
		t.Fatal(err)
	}
	if points, err := s.others.List(t.Context(), nil); err != nil || len(points) > 0 {
		t.Errorf("%v, %v", points, err)
	}
}
