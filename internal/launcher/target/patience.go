package target

import (
	"context"
	"errors"
	"time"

	"github.com/varvebackup/varve/internal/guard"
)

// ErrNotResponding says that the storage of a volume has not answered in time, as with an NFS server that is gone.
var ErrNotResponding = errors.New("the storage of the target volume does not answer")

// WaitFor calls f, and waits for it no longer than patience: then it returns ErrNotResponding. Nothing can cancel a call
// into a file system, so that f goes on in its goroutine. Its context has ended then, and f must not use what belongs to
// the caller.
func WaitFor(patience time.Duration, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	done := make(chan error, 1)
	go func() {
		defer cancel()
		done <- guard.Call(func() error { return f(ctx) })
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-done: // it ended ctx, or stopped with it
		if errors.Is(err, context.DeadlineExceeded) {
			err = ErrNotResponding
		}
		return err
	default:
		return ErrNotResponding
	}
}

// answerPatience is how long a look at the free space may take.
const answerPatience = 5 * time.Second

// FreeBytesSoon is FreeBytes, or ErrNotResponding if that takes long.
func (v *Volume) FreeBytesSoon() (uint64, error) {
	found := make(chan uint64, 1)
	err := WaitFor(answerPatience, func(context.Context) error {
		free, err := v.FreeBytes()
		found <- free
		return err
	})
	if err != nil {
		return 0, err
	}
	return <-found, nil
}
