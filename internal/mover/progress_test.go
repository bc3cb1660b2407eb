package mover

import (
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
)

func TestReporter_deliversTheLastReport(t *testing.T) {
	t.Parallel()
	var got []int64
	r := startReporter(func(p Progress) { got = append(got, p.ProcessedBytes) })
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for n := range int64(100) {
				r.report(Progress{ProcessedBytes: n})
			}
		})
	}
	workers.Wait()
	r.report(Progress{ProcessedBytes: 1000})
	r.stop()
	if len(got) == 0 || got[len(got)-1] != 1000 {
		t.Errorf("got %v", got)
	}
	r.report(Progress{ProcessedBytes: 2000}) // too late
}

// A callback that takes its time delays nobody, and may report itself: no lock is held while it runs.
func TestReporter_callsWithoutALock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var got []int64
		var r *reporter
		goOn := make(chan struct{})
		r = startReporter(func(p Progress) {
			got = append(got, p.ProcessedBytes)
			if p.ProcessedBytes == 1 {
				r.report(Progress{ProcessedBytes: 2})
				<-goOn
			}
		})
		r.report(Progress{ProcessedBytes: 1})
		synctest.Wait()
		for n := range int64(10) {
			r.report(Progress{ProcessedBytes: 3 + n})
		}
		close(goOn)
		r.stop()
		if diff := cmp.Diff([]int64{1, 12}, got); diff != "" {
			t.Error(diff)
		}
	})
}

func TestReporter_needsNoCallback(t *testing.T) {
	t.Parallel()
	r := startReporter(nil)
	r.report(Progress{})
	r.stop()
}
