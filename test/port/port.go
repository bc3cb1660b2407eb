// Package port keeps ports of the loopback interface for servers that tests stop and start again.
package port

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Reserve returns a loopback address whose port nobody gets by chance until release is called, even while no
// server listens there. It binds a socket to the port and never listens on it. A server that sets SO_REUSEADDR, as
// Go's servers do, can still listen on it.
func Reserve() (address string, release func(), err error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", nil, err
	}
	name, err := bind(fd)
	if err != nil {
		return "", nil, errors.Join(err, unix.Close(fd))
	}
	return name, func() { _ = unix.Close(fd) }, nil
}

func bind(fd int) (string, error) {
	// The order matters: the kernel chooses a port that nobody has, and only then allows sharing it.
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return "", err
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return "", err
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return "", err
	}
	inet, ok := name.(*unix.SockaddrInet4)
	if !ok {
		return "", fmt.Errorf("the socket has an address of type %T", name)
	}
	return fmt.Sprintf("127.0.0.1:%d", inet.Port), nil
}
