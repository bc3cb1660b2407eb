package reconcile

import (
	"errors"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
)

// A conflict is no failure, and is retried with delays that grow: an API server that is slow to tell of changes would
// otherwise be asked at the pace of the first retry for as long as it is slow.
func TestRetryConflict_backsOff(t *testing.T) {
	t.Parallel()
	later := ctrl.Result{RequeueAfter: time.Hour}
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "backups"}, "b", errors.New("it has changed"))
	result, err := RetryConflict(later, conflict)
	if err != nil || result != RetrySoon() || result.RequeueAfter != 0 {
		t.Errorf("a conflict: %+v, %v", result, err)
	}
	failure := errors.New("failure")
	if result, err := RetryConflict(later, failure); !errors.Is(err, failure) || !result.IsZero() {
		t.Errorf("a failure: %+v, %v", result, err)
	}
	if result, err := RetryConflict(later, nil); err != nil || result != later {
		t.Errorf("neither: %+v, %v", result, err)
	}
	limiter := Options(1).RateLimiter
	first, second := limiter.When(ctrl.Request{}), limiter.When(ctrl.Request{})
	if first != 50*time.Millisecond || second <= first {
		t.Errorf("retries after %s and %s", first, second)
	}
}
