package repository

import (
	"errors"
	"testing"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/test/verdict"
)

// What the storage does not answer for is neither missing nor damaged.
func TestList_aStorageErrorLeavesNothingOut(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	config := s.connect(t, "machine", false)
	firstWeek(t, s.opened(t, config), newBitmapDisk(4*mib))
	for n := range int64(20) {
		r := s.opened(t, config)
		failure := s.failWhenRead("q", n)
		points, err := r.List(t.Context(), nil)
		s.failing.Store(nil)
		if err == nil {
			if len(points) != 3 || n == 0 {
				verdict.Fatalf(t, "%d restore points after %d reads that worked", len(points), n)
			}
			return
		}
		if !errors.Is(err, failure) || errors.Is(err, errclass.Corrupt) || len(points) > 0 {
			t.Errorf("after %d reads: %d restore points, %v", n, len(points), err)
		}
	}
	t.Error("it never worked")
}
