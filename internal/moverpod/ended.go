package moverpod

import (
	"context"
	"os"

	"github.com/varvebackup/varve/internal/errclass"
)

// whyEnded returns the error that a pull backup cannot be read any more if the file at path (datamove.EndpointEndedKey) says so. A file that is
// not there says nothing: the kubelet brings it.
func whyEnded(path string) error {
	why, err := os.ReadFile(path)
	if err != nil || len(why) == 0 {
		return nil //nolint:nilerr // as documented
	}
	return errclass.Errorf(errclass.Expired, "%s", why)
}

// readBound bounds a context by the time in which a pull backup can be read.
type readBound func(context.Context) (context.Context, context.CancelFunc)

// untilEnded returns a bound by which contexts end, with that error as their cause, when the file at path says that the pull backup cannot be
// read any more. A launcher that is gone for good does not say so, and one that hangs is waited for. The bound is for reading alone: the
// repository needs no backup to find a restore point, or to publish one of what was read. stop ends the looking.
func (r *run) untilEnded(ctx context.Context, path string) (bound readBound, stop context.CancelFunc) {
	readable, end := context.WithCancelCause(ctx)
	go func() {
		for {
			if err := whyEnded(path); err != nil {
				end(err)
			}
			if !pause(readable, r.limits.ended) {
				return
			}
		}
	}()
	bound = func(ctx context.Context) (context.Context, context.CancelFunc) {
		ctx, cancel := context.WithCancelCause(ctx)
		forget := context.AfterFunc(readable, func() { cancel(context.Cause(readable)) })
		return ctx, func() { forget(); cancel(nil) }
	}
	return bound, func() { end(nil) }
}
