package disk

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// socketDir makes a directory whose name is short enough for sockets.
func socketDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "listen")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// abandon leaves a socket behind, as a killed server does.
func abandon(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestASocketThatNobodyListensOnMakesWay(t *testing.T) {
	t.Parallel()
	path := filepath.Join(socketDir(t), "s")
	abandon(t, path)
	for range 2 { // the second time there is no abandoned socket
		l, err := listenUnix(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v", info, err)
		}
		if err := errors.Join(c.Close(), l.Close()); err != nil {
			t.Error(err)
		}
	}
}

func TestWhatIsInTheWayOfASocketStays(t *testing.T) {
	t.Parallel()
	for name, put := range map[string]func(t *testing.T, path string){
		"a server": func(t *testing.T, path string) {
			t.Helper()
			l, err := net.Listen("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { l.Close() })
		},
		"a server for datagrams": func(t *testing.T, path string) {
			t.Helper()
			c, err := net.ListenPacket("unixgram", path)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
		},
		"a file": func(t *testing.T, path string) {
			t.Helper()
			if err := os.WriteFile(path, []byte("content"), 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"a directory": func(t *testing.T, path string) {
			t.Helper()
			if err := os.Mkdir(path, 0o700); err != nil {
				t.Fatal(err)
			}
		},
		"a link to a socket that nobody listens on": func(t *testing.T, path string) {
			t.Helper()
			abandon(t, path+"2")
			if err := os.Symlink(path+"2", path); err != nil {
				t.Fatal(err)
			}
		},
		"a socket in a directory that somebody else has locked": func(t *testing.T, path string) {
			t.Helper()
			abandon(t, path)
			dir, locked := lockDirectory(t.Context(), filepath.Dir(path))
			if !locked {
				t.Fatal("no lock")
			}
			t.Cleanup(func() { dir.Close() })
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(socketDir(t), "s")
			put(t, path)
			before, err := os.Lstat(path)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := listenUnix(t.Context(), path); !errors.Is(err, unix.EADDRINUSE) {
				t.Errorf("%v", err)
			}
			if after, err := os.Lstat(path); err != nil || !os.SameFile(before, after) {
				t.Errorf("it is not there any more: %v", err)
			}
		})
	}
}

// Of many that want one socket at once, whether it is free or abandoned, one gets it, and is the one that clients
// reach.
func TestOneOfManyTakesTheSocket(t *testing.T) {
	t.Parallel()
	path := filepath.Join(socketDir(t), "s")
	for n := range 100 {
		if n%2 == 0 {
			abandon(t, path)
		}
		open := make(chan net.Listener, 4)
		start := make(chan struct{})
		var all sync.WaitGroup
		for range cap(open) {
			all.Go(func() {
				<-start
				l, err := listenUnix(t.Context(), path)
				if err == nil {
					open <- l
				} else if !errors.Is(err, unix.EADDRINUSE) {
					t.Error(err)
				}
			})
		}
		close(start)
		all.Wait()
		close(open)
		if len(open) != 1 {
			t.Fatalf("%d listen", len(open))
		}
		if c, err := net.Dial("unix", path); err != nil {
			t.Errorf("the one that listens is not reached: %v", err)
		} else {
			_ = c.Close()
		}
		if err := (<-open).Close(); err != nil {
			t.Error(err)
		}
	}
}
