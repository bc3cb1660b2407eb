package pull

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/varvebackup/varve/internal/launcher/freeze"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
)

// The guest answers the thaw late, as Windows does. Nobody reads that it was frozen before that is known.
func TestQuiesce_isTrueAtEachMoment(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answers       time.Duration
		held          bool
		serving, done pb.Backup_Quiesce
	}{
		"at once":                     {0, true, pb.Backup_FROZEN, pb.Backup_FROZEN},
		"late, and it held":           {freeze.ThawPatience + time.Second, true, pb.Backup_FROZEN, pb.Backup_FROZEN},
		"late, and it did not hold":   {freeze.ThawPatience + time.Second, false, pb.Backup_THAWED_EARLY, pb.Backup_THAWED_EARLY},
		"only while it is pulled":     {freeze.ThawPatience + freeze.AnswerPatience + time.Minute, true, pb.Backup_THAWED_EARLY, pb.Backup_FROZEN},
		"not before the end, or ever": {2 * time.Hour, true, pb.Backup_THAWED_EARLY, pb.Backup_THAWED_EARLY},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				var answered atomic.Bool
				if !c.held {
					b.guest.Fail["Thaw"] = errors.New("couldn't hold writes")
				}
				b.guest.On["Thaw"] = func() {
					time.Sleep(c.answers)
					answered.Store(true)
					if !c.held {
						b.guest.Set(func() { b.guest.Frozen = false })
					}
				}
				var j *Job
				b.whenServing(&j, func(j *Job) {
					if got := j.Snapshot(); got.Quiesce != c.serving {
						t.Errorf("while it serves: %v", got)
					}
					time.Sleep(time.Hour)
					_ = j.Finish()
				})
				changed := b.cfg.Changed
				b.cfg.Changed = func() {
					if s := j.Snapshot(); s.Quiesce == pb.Backup_FROZEN && !answered.Load() {
						t.Errorf("says that the guest was frozen before that is known: %v", s)
					}
					changed()
				}
				j = b.job()
				j.Run()
				if got := j.Snapshot(); got.Phase != pb.Backup_DONE || got.Quiesce != c.done || got.FrozenMillis < min(c.answers, freeze.ThawPatience).Milliseconds() {
					t.Errorf("%v", got)
				}
				b.endLife()
				b.freezer.Wait()
			})
		})
	}
}
