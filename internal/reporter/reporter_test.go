package reporter

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestReporter_deliversTheLastReport(t *testing.T) {
	t.Parallel()
	var got []int
	r := New(func(n int) { got = append(got, n) })
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for n := range 100 {
				r.Report(n)
			}
		})
	}
	workers.Wait()
	r.Report(1000)
	r.Stop()
	if len(got) == 0 || got[len(got)-1] != 1000 {
		t.Errorf("got %v", got)
	}
	r.Report(2000) // too late
	r.Stop()
}

// A callback that takes its time delays nobody, and may report itself: no lock is held while it runs.
func TestReporter_callsWithoutALock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var got []int
		var r *Reporter[int]
		goOn := make(chan struct{})
		r = New(func(n int) {
			got = append(got, n)
			if n == 1 {
				r.Report(2)
				<-goOn
			}
		})
		r.Report(1)
		synctest.Wait()
		for n := range 10 {
			r.Report(3 + n)
		}
		close(goOn)
		r.Stop()
		if diff := cmp.Diff([]int{1, 12}, got); diff != "" {
			t.Error(diff)
		}
	})
}

func TestReporter_flushesWhatWasReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var got []int
		goOn := make(chan struct{})
		r := New(func(n int) {
			got = append(got, n)
			if n == 3 {
				<-goOn
			}
		})
		for n := range 3 {
			r.Report(n)
			r.Flush(t.Context())
		}
		if diff := cmp.Diff([]int{0, 1, 2}, got); diff != "" {
			t.Error(diff)
		}
		r.Report(3)
		ctx, cancel := context.WithCancel(t.Context())
		go cancel()
		r.Flush(ctx) // The callback does not return.
		close(goOn)
		r.Stop()
		r.Flush(t.Context())
	})
}

func TestReporter_needsNoCallback(t *testing.T) {
	t.Parallel()
	r := New[int](nil)
	r.Report(1)
	r.Flush(t.Context())
	r.Stop()
}
