// Package refusal tells what the API server will not do from what it could not do this time.
package refusal

import (
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Is says that the API server answered and will not do what it was asked for, by its rules or by a webhook. A lost
// race and a server that is busy are none.
func Is(err error) bool {
	var answer apierrors.APIStatus
	if !errors.As(err, &answer) {
		return false
	}
	for _, passing := range []func(error) bool{
		apierrors.IsConflict, apierrors.IsNotFound, apierrors.IsTimeout, apierrors.IsServerTimeout, apierrors.IsTooManyRequests, apierrors.IsServiceUnavailable,
	} {
		if passing(err) {
			return false
		}
	}
	return true
}
