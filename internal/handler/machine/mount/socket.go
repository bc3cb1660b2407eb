package mount

import (
	"context"
	"fmt"
	"net"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/varvebackup/varve/internal/layout"
)

// Dial connects to the launcher's socket. The launcher owns the socket's directory and could put a link to another
// service's socket there. So Dial refuses links, and connects to the very file that it has checked.
func (m *Mounts) Dial(ctx context.Context, launcher types.UID) (net.Conn, error) {
	rel, err := joinBelow(launcher, strings.TrimPrefix(layout.NodeSocket("", launcher), string(launcher)))
	if err != nil {
		return nil, err
	}
	socket, err := openBelow(fdOf(m.root), rel, 0)
	if err != nil {
		return nil, fmt.Errorf("socket of launcher pod %s: %w", launcher, err)
	}
	defer socket.Close() //nolint:errcheck // a handle
	var s unix.Stat_t
	if err := unix.Fstat(fdOf(socket), &s); err != nil {
		return nil, fmt.Errorf("socket of launcher pod %s: %w", launcher, err)
	}
	if s.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return nil, fmt.Errorf("socket of launcher pod %s: %w: not a socket", launcher, ErrUnsafePath)
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", procPath(socket))
	if err != nil {
		return nil, fmt.Errorf("connect to launcher pod %s: %w", launcher, err)
	}
	return conn, nil
}
