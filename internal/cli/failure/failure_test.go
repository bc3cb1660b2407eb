package failure

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/varvebackup/varve/internal/errclass"
)

// What a command was cancelled for is its error, and not that the user interrupted it.
func TestInterrupted_knowsWhoEndedIt(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errclass.Errorf(errclass.Expired, "the pod is gone"))
	if err := Interrupted(ctx, ctx.Err(), "nothing was made", ""); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := Interrupted(ctx, ctx.Err(), "nothing was made", ""); !strings.Contains(err.Error(), "interrupted: nothing was made") {
		t.Error(err)
	}
}
