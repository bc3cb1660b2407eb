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

// untilEnded returns a context that ends, with that error as its cause, when the file at path says that the pull backup cannot be read any
// more. A launcher that is gone for good does not say so, and one that hangs is waited for.
func (r *run) untilEnded(ctx context.Context, path string) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		for {
			if err := whyEnded(path); err != nil {
				cancel(err)
			}
			if !pause(ctx, r.limits.ended) {
				return
			}
		}
	}()
	return ctx, func() { cancel(nil) }
}
