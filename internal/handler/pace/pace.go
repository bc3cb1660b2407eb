// Package pace says how many objects the node's reconcilers work on at a time, and how soon they try again.
package pace

import (
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

const (
	// workers is the number of objects that one reconciler works on at a time: a launcher that is slow to answer holds up one.
	workers = 8
	// firstRetry doubles with each failure up to lastRetry. Nothing announces that the API server or a webhook is back, so that the longest wait is
	// much shorter than the deadlines of a backup's phases.
	firstRetry, lastRetry = 50 * time.Millisecond, 30 * time.Second
)

// Options are for each reconciler its own: a limiter must not be shared.
func Options() controller.Options {
	return controller.Options{
		MaxConcurrentReconciles: workers,
		RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, lastRetry),
	}
}
