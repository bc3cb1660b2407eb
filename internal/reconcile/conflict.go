package reconcile

import (
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// RetryConflict returns what a reconciler returns for result and err. A conflict means that somebody else wrote the
// object in between, or that the cache is behind. That is no failure: the reconciler looks again soon, and later each
// time, so that an API server that is slow to tell of changes is not asked twenty times a second.
func RetryConflict(result ctrl.Result, err error) (ctrl.Result, error) {
	if apierrors.IsConflict(err) {
		return RetrySoon(), nil
	}
	if err != nil {
		return ctrl.Result{}, err // controller-runtime ignores the result of a failure, and warns of it
	}
	return result, nil
}

// RetrySoon asks for a retry with the delays of a failure, which it does not report. The object's next event brings the
// retry forward.
func RetrySoon() ctrl.Result {
	return ctrl.Result{Requeue: true} // with RequeueAfter, the delays would not grow
}

// MergeFrom returns the patch from base to a changed copy of it. The API server refuses the patch with a conflict if
// the object has changed since base was read. base must not be modified before the patch is sent.
func MergeFrom(base client.Object) client.Patch {
	return client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})
}
