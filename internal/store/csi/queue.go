package csi

import (
	"context"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
)

// newQueue returns a queue for runQueue. An item whose work has failed waits for first, and for twice as long after
// each further failure, but not longer than most.
func newQueue[T comparable](first, most time.Duration) workqueue.TypedRateLimitingInterface[T] {
	return workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[T](first, most))
}

// runQueue calls work for the items of a queue until ctx ends, and shuts the queue down then. It works on as many items
// at once as there are threads, never on one item twice at a time. An item whose work fails is reported to failed, and
// comes again later.
func runQueue[T comparable](
	ctx context.Context, queue workqueue.TypedRateLimitingInterface[T], threads int,
	work func(context.Context, T) error, failed func(T, error),
) error {
	stop := context.AfterFunc(ctx, queue.ShutDown)
	defer stop()
	var workers sync.WaitGroup
	for range threads {
		workers.Go(func() {
			for {
				item, shutdown := queue.Get()
				if shutdown {
					return
				}
				if err := work(ctx, item); err != nil && ctx.Err() == nil {
					failed(item, err)
					queue.AddRateLimited(item)
				} else {
					queue.Forget(item)
				}
				queue.Done(item)
			}
		})
	}
	workers.Wait()
	return ctx.Err()
}
