// Package privatesocket listens on unix sockets that only their owner can connect to, from the first moment on.
//
// The umask belongs to the whole process and so cannot be changed around a bind. On Linux a socket gets, when it is bound, the mode that its
// descriptor has, less the umask; so that is set before.
package privatesocket

import (
	"context"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Listen listens on a unix socket of mode 0600 at path. The error is unix.EADDRINUSE, among others, if something is there.
func Listen(ctx context.Context, path string) (net.Listener, error) {
	config := &net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		// Before bind: on Linux, the socket at path gets the mode of the one that is bound, less the umask.
		if controlled := c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }); controlled != nil {
			return controlled
		}
		return os.NewSyscallError("fchmod", err)
	}}
	return config.Listen(ctx, "unix", path)
}
