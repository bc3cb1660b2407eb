package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// retryAfter is the delay before a failed read is tried again: short for a person, long for a server that is starting.
const retryAfter = time.Second

// Check looks at an object and reports whether the wait is over. exists is false if the object does not exist, or no
// longer.
type Check[T client.Object] func(object T, exists bool) (done bool, err error)

// Follow calls check with the object as it is now, and again after each change, until check is done or fails. empty and
// list must be of the object's kind. A server that goes away and comes back delays the wait but does not end it. Only
// the context, check, and errors that no retry can fix (the user may not read the object, its kind is not installed)
// end it. If the context ends it, the error is the context's cause.
func Follow[T client.Object](ctx context.Context, c client.WithWatch, key client.ObjectKey, empty T, list client.ObjectList, check Check[T]) error {
	for {
		done, err := followOnce(ctx, c, key, empty, list, check)
		var verdict verdictError
		switch {
		case errors.As(err, &verdict):
			return verdict.error
		case done:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil && !isTransient(err):
			return err
		}
		if err := pauseFor(ctx, retryAfter); err != nil {
			return err
		}
	}
}

// verdictError is an error of check. It is final, whatever it wraps.
type verdictError struct{ error }

// followOnce reads the object, then follows one watch to its end.
func followOnce[T client.Object](ctx context.Context, c client.WithWatch, key client.ObjectKey, empty T, list client.ObjectList, check Check[T]) (bool, error) {
	judge := func(object T, exists bool) (bool, error) {
		done, err := check(object, exists)
		if err != nil {
			return false, verdictError{err}
		}
		return done, nil
	}
	object, ok := empty.DeepCopyObject().(T)
	if !ok {
		return false, fmt.Errorf("copy %T: another type came out", empty)
	}
	err := c.Get(ctx, key, object)
	if err != nil && Classify(err) != NotFound {
		return false, fmt.Errorf("read %s: %w", key, err)
	}
	exists := err == nil
	if done, err := judge(object, exists); done || err != nil {
		return done, err
	}
	version := ""
	if exists {
		version = object.GetResourceVersion()
	}
	w, err := c.Watch(ctx, list, &client.ListOptions{
		Namespace:     key.Namespace,
		FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, key.Name),
		Raw:           &metav1.ListOptions{ResourceVersion: version},
	})
	if err != nil {
		return false, fmt.Errorf("watch %s: %w", key, err)
	}
	defer w.Stop()
	for event := range w.ResultChan() {
		seen, ok := event.Object.(T)
		if !ok {
			return false, nil // an error of the stream, such as an expired version: read again
		}
		if done, err := judge(seen, event.Type != watch.Deleted); done || err != nil {
			return done, err
		}
	}
	return false, nil
}

// isTransient reports whether a later try can succeed.
func isTransient(err error) bool {
	return Classify(err) == Unreachable || apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) || apierrors.IsTooManyRequests(err) ||
		apierrors.IsServiceUnavailable(err) || apierrors.IsInternalError(err) || apierrors.IsResourceExpired(err) || apierrors.IsGone(err)
}

// pauseFor waits, or returns the context's cause.
func pauseFor(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
