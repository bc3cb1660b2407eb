package errclass

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestIsFull_seesThroughWraps(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]bool{
		syscall.ENOSPC: true, unix.EDQUOT: true, fmt.Errorf("write: %w", unix.ENOSPC): true, Errorf(Exhausted, "sync: %w", unix.EDQUOT): true,
		nil: false, unix.EIO: false, Exhausted: false, errors.New("no space left on device"): false,
	} {
		if IsFull(err) != want {
			t.Errorf("%v: %v", err, !want)
		}
	}
}
