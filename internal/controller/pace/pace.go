// Package pace says how fast the controllers work: how many objects at a time, and how soon again after a failure.
package pace

import (
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

const (
	// workers is the number of objects that one controller works on at a time. Two workers never have the same object.
	workers = 4
	// firstRetry doubles with each failure up to lastRetry. Nothing announces that a quota was raised or a webhook mended, so that the
	// longest wait is one that a person would sit through.
	firstRetry, lastRetry = 50 * time.Millisecond, 30 * time.Second
)

// Options are for each controller its own: a limiter must not be shared.
func Options() controller.Options {
	return controller.Options{
		MaxConcurrentReconciles: workers,
		RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, lastRetry),
	}
}
