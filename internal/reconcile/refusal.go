package reconcile

import (
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// IsRefusal reports whether the API server answered and refuses the request, by its own rules or through a webhook. A lost
// race and a busy server are not refusals.
func IsRefusal(err error) bool {
	var answer apierrors.APIStatus
	if !errors.As(err, &answer) {
		return false
	}
	for _, transient := range []func(error) bool{
		apierrors.IsConflict, apierrors.IsNotFound, apierrors.IsTimeout, apierrors.IsServerTimeout, apierrors.IsTooManyRequests, apierrors.IsServiceUnavailable,
	} {
		if transient(err) {
			return false
		}
	}
	return true
}
