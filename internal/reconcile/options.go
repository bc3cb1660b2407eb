package reconcile

import (
	"time"

	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller"
)

// The number of objects that one reconciler works on at a time. Two workers never have the same object.
const (
	ControllerWorkers = 4
	// HandlerPlaces is how many passes of a reconciler of the handler have something to do at a time.
	HandlerPlaces = 8
	// HandlerWorkers is how many passes there may be, with those that wait for a launcher or for storage. A node has
	// fewer pods, so nobody who waits keeps another object from its pass. An idle one costs 4 KiB.
	HandlerWorkers = 512
)

// The delay before a retry is firstRetry and doubles with each failure up to lastRetry. No event tells when a quota
// was raised, or when the API server or a webhook is back. So the longest delay is one that a person would sit
// through, and much shorter than the deadlines of a backup's phases.
const firstRetry, lastRetry = 50 * time.Millisecond, 30 * time.Second

// Options returns the options of one reconciler. Each needs its own, because a limiter must not be shared.
func Options(workers int) controller.Options {
	return controller.Options{
		MaxConcurrentReconciles: workers,
		// controller-runtime's own queue may stand still when it is stopped while events come in, and the process with it until its grace period is
		// over. It is mended in controller-runtime 0.25.2 (kubernetes-sigs/controller-runtime#3538).
		UsePriorityQueue: ptr.To(false),
		NewQueue:         newTurnsQueue,
		RateLimiter:      workqueue.NewTypedItemExponentialFailureRateLimiter[ctrl.Request](firstRetry, lastRetry),
	}
}
