package privatesocket_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
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

// A socket that another process finds the moment that it appears is private already. Looking is done as often as the
// machine can while sockets come and go, so that a mode that is set after the bind is seen.
func TestListen_isNeverOpenForAMoment(t *testing.T) {
	defer unix.Umask(unix.Umask(0))
	dir, err := os.MkdirTemp("", "private")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "s")
	done := make(chan struct{})
	seen := make(chan map[os.FileMode]int)
	var looks atomic.Int32
	go func() {
		modes := map[os.FileMode]int{}
		for {
			select {
			case <-done:
				seen <- modes
				return
			default:
			}
			if info, err := os.Lstat(path); err == nil {
				modes[info.Mode().Perm()]++
				looks.Add(1)
			}
		}
	}()
	for rounds := 0; rounds < 2000 || looks.Load() < 100; rounds++ {
		l, err := privatesocket.Listen(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	close(done)
	modes := <-seen
	if len(modes) != 1 || modes[0o600] == 0 {
		t.Errorf("the socket was seen with the modes %v, want 0600 alone", modes)
	}
}
