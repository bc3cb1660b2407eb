package moverpod

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
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
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		f, err := os.OpenFile(path, os.O_WRONLY|unix.O_NONBLOCK, 0)
		if err == nil {
			return f
		}
		if time.Now().After(deadline) {
			t.Errorf("nobody reads: %v", err)
			return nil
		}
	}
}
