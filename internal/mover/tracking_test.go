package mover

import (
	"testing"
	"time"

	"github.com/varvebackup/varve/internal/repository"
)

func TestBaseCheckpoint_isThatOfTheOneMadeLast(t *testing.T) {
	t.Parallel()
	point := func(id string, at, after int64) *repository.RestorePoint {
		p := &repository.RestorePoint{ID: id, Time: time.Unix(at, 0), Disks: []repository.Disk{{Name: "root", Change: "c-" + id}}}
		if after > 0 {
			p.After = time.Unix(after, 0)
		}
		return p
	}
	points := []*repository.RestorePoint{point("first", 1, 0), point("last", 3, 1000), point("ahead", 1000, 0)}
	repository.SortByMaking(points)
	if got := baseCheckpoint(points, repository.ParentAuto, "root"); got != "c-last" {
		t.Errorf("auto: %s", got)
	}
	if got := baseCheckpoint(points, "ahead", "root"); got != "c-ahead" {
		t.Errorf("the one that was asked for: %s", got)
	}
}
