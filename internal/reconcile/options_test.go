package reconcile

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// After an outage of hours, the next retry must come before a phase of a backup is given up. controller-runtime's
// own limiter waits up to 17 minutes.
func TestOptions_longestWaitIsShort(t *testing.T) {
	t.Parallel()
	limiter := Options(ControllerWorkers).RateLimiter
	var wait time.Duration
	for range 60 {
		wait = limiter.When(ctrl.Request{})
	}
	if wait > time.Minute {
		t.Errorf("after 60 failures the next try comes in %s", wait)
	}
}

// A process that is told to stop while events come in stops.
func TestOptions_stopAmongEvents(t *testing.T) {
	t.Parallel()
	const rounds, workers, sources = 100, 16, 4
	for round := range rounds {
		o := Options(workers)
		o.SkipNameValidation = ptr.To(true)
		o.Reconciler = reconcile.Func(func(context.Context, ctrl.Request) (ctrl.Result, error) { return ctrl.Result{}, nil })
		c, err := controller.NewTypedUnmanaged("events", o)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var seen atomic.Int64
		err = c.Watch(source.Func(func(ctx context.Context, q workqueue.TypedRateLimitingInterface[ctrl.Request]) error {
			for n := range sources {
				go func() {
					for ctx.Err() == nil {
						name := strconv.FormatInt(seen.Add(1)%100, 10)
						q.Add(ctrl.Request{NamespacedName: types.NamespacedName{Namespace: strconv.Itoa(n), Name: name}})
					}
				}()
			}
			return nil
		}))
		if err != nil {
			t.Fatal(err)
		}
		stopped := make(chan error, 1)
		go func() { stopped <- c.Start(ctx) }()
		for seen.Load() < 2000 {
			time.Sleep(time.Millisecond)
		}
		cancel()
		select {
		case err := <-stopped:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("round %d: it does not stop", round)
		}
	}
}
