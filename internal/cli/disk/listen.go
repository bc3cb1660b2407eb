package disk

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/privatesocket"
)

const (
	// lockWait is how long to wait for a directory's lock, far longer than any process here holds it. lockRetry is the
	// time between two attempts.
	lockWait  = 2 * time.Second
	lockRetry = 10 * time.Millisecond
)

// listenUnix listens on a unix socket for this user only. It replaces a socket that nobody listens on, which a killed
// server leaves behind. Every process that does this holds the directory's lock meanwhile, so that none of them takes a
// socket that was just bound, and does not listen yet, for an abandoned one.
func listenUnix(ctx context.Context, path string) (net.Listener, error) {
	dir, locked := lockDirectory(ctx, filepath.Dir(path))
	if dir != nil {
		defer func() { _ = dir.Close() }() // this releases the lock, too
	}
	l, err := privatesocket.Listen(ctx, path)
	if errors.Is(err, unix.EADDRINUSE) && locked && isAbandoned(ctx, path) {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		l, err = privatesocket.Listen(ctx, path)
	}
	return l, err
}

// lockDirectory takes the lock of a directory. Not every directory has locks, and other programs may hold this one for
// reasons of their own. Without the lock, nothing is replaced.
func lockDirectory(ctx context.Context, path string) (dir *os.File, locked bool) {
	dir, err := os.Open(path)
	if err != nil {
		return nil, false
	}
	ctx, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	ticker := time.NewTicker(lockRetry)
	defer ticker.Stop()
	for {
		if err = unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
			return dir, err == nil
		}
		select {
		case <-ctx.Done():
			return dir, false
		case <-ticker.C:
		}
	}
}

// isAbandoned reports whether path is a socket that nobody listens on.
func isAbandoned(ctx context.Context, path string) bool {
	info, err := os.Lstat(path)
	if err != nil || info.Mode().Type() != fs.ModeSocket {
		return false
	}
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err == nil {
		_ = c.Close() // it only showed that somebody listens
		return false
	}
	return errors.Is(err, unix.ECONNREFUSED)
}
