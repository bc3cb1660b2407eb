package moverpod

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/test/wait"
)

// makeFIFO makes a file whose reader hangs until the file that awaitReader returns is closed, and heeds no context.
func makeFIFO(t *testing.T, path string) {
	t.Helper()
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
}

// awaitReader waits until somebody reads from a FIFO. Any goroutine may call it.
func awaitReader(t *testing.T, path string) *os.File {
	t.Helper()
	var f *os.File
	err := wait.For(t.Context(), time.Minute, "a reader of "+path, func(context.Context) (bool, string, error) {
		var err error
		f, err = os.OpenFile(path, os.O_WRONLY|unix.O_NONBLOCK, 0)
		return err == nil, fmt.Sprint(err), nil
	})
	if err != nil {
		t.Error(err)
	}
	return f
}
