package repository

import (
	"errors"
	"testing"

	"github.com/varvebackup/varve/internal/errclass"
)

// A connection that has not seen a restore point yet deletes it, not only its record.
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

// A restore point that was pinned after this connection looked stays, and so does everything that was to be deleted with it.
func TestDelete_whatWasPinnedMeanwhile(t *testing.T) {
	t.Parallel()
	s := newLongSite(t)
	var ids []string
	d := s.disk(1)
	for range 2 {
		p, err := s.r.Backup(t.Context(), Request{Source: testSource, Disks: []DiskSource{d.source(false)}})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, p.ID)
	}
	if err := s.others.conn.Kopia.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.r.Pin(t.Context(), ids[1], []string{"audit"}, nil); err != nil {
		t.Fatal(err)
	}
	if err := s.others.Delete(t.Context(), ids...); !errors.Is(err, errclass.Conflict) {
		t.Errorf("deleted: %v", err)
	}
	if points, err := s.others.List(t.Context(), nil); err != nil || len(points) != 2 {
		t.Errorf("%v, %v", points, err)
	}
}
