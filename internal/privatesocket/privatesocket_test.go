package privatesocket_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/privatesocket"
)

// The mode is right from the start: nothing changes it after the bind, and the umask here lets everything through.
func TestListen_isPrivateFromTheBeginning(t *testing.T) {
	defer unix.Umask(unix.Umask(0))
	dir, err := os.MkdirTemp("", "private") // names of sockets must be short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "s")
	l, err := privatesocket.Listen(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if _, err := privatesocket.Listen(t.Context(), path); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("a second one: %v", err)
	}
	c, err := net.Dial("unix", path)
	if err := errors.Join(err, c.Close(), l.Close()); err != nil {
		t.Error(err)
	}
}
