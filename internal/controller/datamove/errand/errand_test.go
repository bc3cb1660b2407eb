package errand

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

func key(i int) types.NamespacedName { return types.NamespacedName{Name: strconv.Itoa(i)} }

// run runs a Runner in a bubble, and takes the place of a controller that is told of ends.
func run(t *testing.T, limits Limits, test func(t *testing.T, r *Runner[int])) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := NewRunner[int](limits)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- r.Start(ctx) }()
		go func() {
			for {
				select {
				case <-r.ended:
				case <-ctx.Done():
					return
				}
			}
		}()
		test(t, r)
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestRunner_oneForAKey(t *testing.T) {
	t.Parallel()
	run(t, Limits{InAll: 4, PerGroup: 4, Deadline: time.Minute}, func(t *testing.T, r *Runner[int]) {
		var runs atomic.Int32
		for range 3 {
			r.Run(key(1), "g", func(context.Context) int { time.Sleep(time.Second); return int(runs.Add(1)) })
		}
		if !r.Running(key(1)) || r.Running(key(2)) {
			t.Error("it does not run")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if got, ok := r.Take(key(1)); !ok || got != 1 || r.Running(key(1)) {
			t.Errorf("%d %v", got, ok)
		}
		if got, ok := r.Take(key(1)); ok {
			t.Errorf("the result came twice: %d", got)
		}
	})
}

// A server that hangs holds up its own errands alone, and only until their deadline.
func TestRunner_aGroupThatHangsHoldsUpItself(t *testing.T) {
	t.Parallel()
	run(t, Limits{InAll: 3, PerGroup: 2, Deadline: time.Minute}, func(t *testing.T, r *Runner[int]) {
		var now, most atomic.Int32
		for i := range 10 {
			r.Run(key(i), "hangs", func(ctx context.Context) int {
				most.Store(max(most.Load(), now.Add(1)))
				<-ctx.Done()
				now.Add(-1)
				return i
			})
		}
		r.Run(key(10), "answers", func(context.Context) int { return 10 })
		synctest.Wait()
		if _, ok := r.Take(key(10)); !ok {
			t.Error("another group waits")
		}
		time.Sleep(5*time.Minute + time.Second)
		synctest.Wait()
		for i := range 10 {
			if _, ok := r.Take(key(i)); !ok {
				t.Errorf("errand %d has no result", i)
			}
		}
		if most.Load() != 2 || len(r.groups) > 0 {
			t.Errorf("%d at a time, groups %v", most.Load(), r.groups)
		}
	})
}

func TestRunner_endsWithItsManager(t *testing.T) {
	t.Parallel()
	var r *Runner[int]
	run(t, Limits{InAll: 1, PerGroup: 1, Deadline: time.Hour}, func(_ *testing.T, runner *Runner[int]) {
		r = runner
		for i := range 3 {
			r.Run(key(i), "g", func(ctx context.Context) int { <-ctx.Done(); return 1 })
		}
		synctest.Wait()
	})
	for i := range 3 {
		if _, ok := r.Take(key(i)); ok {
			t.Errorf("errand %d has a result that means nothing", i)
		}
	}
}
