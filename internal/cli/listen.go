package cli

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
	// lockWait is how long a directory's lock is waited for, far longer than anybody here has it, and lockRetry how often it is tried.
	lockWait  = 2 * time.Second
	lockRetry = 10 * time.Millisecond
)

// listenUnix listens on a unix socket for this user only. A socket that nobody listens on, as a server leaves it that was killed, makes way.
// All who do this hold the lock of the directory meanwhile, so that nobody takes a socket for a dead one that was bound a moment ago
// and does not listen yet.
func listenUnix(ctx context.Context, path string) (net.Listener, error) {
	dir, locked := lockDirectory(ctx, filepath.Dir(path))
	if dir != nil {
		defer func() { _ = dir.Close() }() // and with it the lock
	}
	l, err := privatesocket.Listen(ctx, path)
	if errors.Is(err, unix.EADDRINUSE) && locked && abandoned(ctx, path) {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		l, err = privatesocket.Listen(ctx, path)
	}
	return l, err
}

// lockDirectory takes the lock of a directory. Not every directory has one, and other programs may hold it for reasons of their own, so
// there may be none: then nothing is replaced.
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

// abandoned says whether path is a socket that nobody listens on.
func abandoned(ctx context.Context, path string) bool {
	info, err := os.Lstat(path)
	if err != nil || info.Mode().Type() != fs.ModeSocket {
		return false
	}
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err == nil {
		_ = c.Close() // It was only asked whether anybody is there.
		return false
	}
	return errors.Is(err, unix.ECONNREFUSED)
}
