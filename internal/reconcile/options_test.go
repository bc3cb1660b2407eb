package reconcile

import (
	"testing"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
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
