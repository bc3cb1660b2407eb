package nbd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// defaultPort is the port that IANA assigned to NBD.
const defaultPort = "10809"

// Target is where an export is.
type Target struct {
	// Network is "tcp" or "unix".
	Network string
	// Address is host:port, or the path of a socket.
	Address string
	// Export is the name of the export; the empty one is the server's default.
	Export string
	// TLS requires TLS: schemes nbds and nbds+unix.
	TLS bool
	// ServerName is what the server's certificate is checked against unless Options.TLS has a name: the host, or the
	// URI's tls-hostname.
	ServerName string
}

// ParseURI reads an NBD URI as doc/uri.md of the NetworkBlockDevice project defines it: nbd://host:port/export,
// nbd+unix:///export?socket=/path, and the same with nbds. An error names the part that is wrong.
func ParseURI(text string) (Target, error) {
	u, err := url.Parse(text)
	if err != nil {
		var reason *url.Error
		if errors.As(err, &reason) {
			err = reason.Err
		}
		return Target{}, fmt.Errorf("NBD URI: %w", err)
	}
	t := Target{Export: strings.TrimPrefix(u.Path, "/"), TLS: strings.HasPrefix(u.Scheme, "nbds")}
	query, err := url.ParseQuery(u.RawQuery)
	switch {
	case err != nil:
		return Target{}, fmt.Errorf("NBD URI: query: %w", err)
	case u.Opaque != "":
		return Target{}, fmt.Errorf("NBD URI: %q lacks // after the scheme", text)
	case u.User != nil:
		return Target{}, errors.New("NBD URI: a user is not supported")
	case u.Fragment != "":
		return Target{}, errors.New("NBD URI: a fragment (#) has no meaning")
	case !validString(t.Export):
		return Target{}, fmt.Errorf("NBD URI: export name is not a string of at most %d bytes", maxStringBytes)
	}
	for key, values := range query {
		if key != "socket" && key != "tls-hostname" {
			return Target{}, fmt.Errorf("NBD URI: parameter %q is not supported", key)
		}
		if len(values) != 1 || values[0] == "" {
			return Target{}, fmt.Errorf("NBD URI: parameter %q needs one value", key)
		}
	}
	switch u.Scheme {
	case "nbd", "nbds":
		err = t.setTCP(u, query)
	case "nbd+unix", "nbds+unix":
		err = t.setUnix(u, query)
	default:
		err = fmt.Errorf("NBD URI: scheme %q is none of nbd, nbds, nbd+unix, nbds+unix", u.Scheme)
	}
	if err != nil {
		return Target{}, err
	}
	t.ServerName = cmp.Or(query.Get("tls-hostname"), t.ServerName)
	return t, nil
}

func (t *Target) setTCP(u *url.URL, query url.Values) error {
	switch {
	case query.Has("socket"):
		return fmt.Errorf("NBD URI: socket needs scheme %s+unix", u.Scheme)
	case u.Hostname() == "":
		return errors.New("NBD URI: no host")
	}
	if _, err := netip.ParseAddr(u.Hostname()); err != nil && strings.Contains(u.Hostname(), ":") {
		return fmt.Errorf("NBD URI: host: %w", err)
	}
	if _, err := strconv.ParseUint(cmp.Or(u.Port(), defaultPort), 10, 16); err != nil {
		return fmt.Errorf("NBD URI: port: %w", err)
	}
	t.Network, t.Address, t.ServerName = "tcp", net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), defaultPort)), u.Hostname()
	return nil
}

func (t *Target) setUnix(u *url.URL, query url.Values) error {
	switch {
	case u.Host != "":
		return fmt.Errorf("NBD URI: host %q with a unix socket; the export follows three slashes", u.Host)
	case !query.Has("socket"):
		return errors.New("NBD URI: no socket parameter")
	}
	t.Network, t.Address = "unix", query.Get("socket")
	return nil
}

// URI returns the target in the form that ParseURI reads.
func (t Target) URI() string {
	u := url.URL{Scheme: "nbd", Path: "/" + t.Export}
	if t.TLS {
		u.Scheme = "nbds"
	}
	query := url.Values{}
	host := ""
	if t.Network == "unix" {
		u.Scheme += "+unix"
		query.Set("socket", t.Address)
	} else {
		u.Host = t.Address
		host, _, _ = net.SplitHostPort(t.Address)
	}
	if t.ServerName != "" && t.ServerName != host {
		query.Set("tls-hostname", t.ServerName)
	}
	u.RawQuery = query.Encode()
	if u.Host == "" {
		return u.Scheme + "://" + u.EscapedPath() + "?" + u.RawQuery
	}
	return u.String()
}

const (
	// A peer that has been silent for keepAliveIdle is probed. It is dead after keepAliveCount unanswered probes.
	keepAliveIdle  = 15 * time.Second
	keepAliveCount = 4
	// unackedTimeout is how long sent bytes may stay unacknowledged.
	unackedTimeout = 60 * time.Second
)

// dialAddress connects to the target's address.
func (t Target) dialAddress(ctx context.Context) (net.Conn, error) {
	d := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: keepAliveIdle, Interval: keepAliveIdle, Count: keepAliveCount}}
	nc, err := d.DialContext(ctx, t.Network, t.Address)
	if err != nil {
		return nil, err
	}
	if tcp, ok := nc.(*net.TCPConn); ok {
		if err := boundUnacked(tcp); err != nil {
			return nil, errors.Join(err, nc.Close())
		}
	}
	return nc, nil
}

func boundUnacked(tcp *net.TCPConn) error {
	raw, err := tcp.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unackedTimeout.Milliseconds()))
	})
	return errors.Join(err, failed)
}
