package moverpod

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// makeFIFO makes a file whose reader hangs until letGoOf is called, and heeds no context.
func makeFIFO(t *testing.T, path string) {
	t.Helper()
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
}

// letGoOf ends the reader of a FIFO. It fails the test if nobody reads.
func letGoOf(t *testing.T, path string) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		f, err := os.OpenFile(path, os.O_WRONLY|unix.O_NONBLOCK, 0)
		if err == nil {
			_ = f.Close()
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}
