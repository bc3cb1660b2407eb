// Package privatesocket listens on unix sockets that only their owner can connect to, from the first moment on.
//
// The umask belongs to the whole process, so it cannot be changed around a bind. On Linux, bind gives a socket the mode
// of its descriptor, less the umask, so the package sets that mode before bind.
package privatesocket

import (
	"context"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Listen listens on a unix socket of mode 0600 at path. If something is already there, the error wraps unix.EADDRINUSE.
func Listen(ctx context.Context, path string) (net.Listener, error) {
	config := &net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		// Before bind: on Linux, the socket at path gets the mode of the descriptor that is bound, less the umask.
		if controlled := c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }); controlled != nil {
			return controlled
		}
		return os.NewSyscallError("fchmod", err)
	}}
	return config.Listen(ctx, "unix", path)
}
