package reconcile

import (
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ConflictDelay is how long a reconciler waits before it retries after a lost race, so that its cache catches up.
const ConflictDelay = 50 * time.Millisecond

// RetryConflict returns what a reconciler returns for result and err. A conflict means that somebody else wrote the
// object in between, or that the cache is behind. That is no failure: the reconciler looks again after ConflictDelay.
func RetryConflict(result ctrl.Result, err error) (ctrl.Result, error) {
	if apierrors.IsConflict(err) {
		return ctrl.Result{RequeueAfter: ConflictDelay}, nil
	}
	if err != nil {
		return ctrl.Result{}, err // controller-runtime ignores the result of a failure, and warns of it
	}
	return result, nil
}

// MergeFrom returns the patch from base to a changed copy of it. The API server refuses the patch with a conflict if
// the object has changed since base was read. base must not be modified before the patch is sent.
func MergeFrom(base client.Object) client.Patch {
	return client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})
}
