package nbd

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// slotsPerConnection is how many requests may be in flight on a connection.
	slotsPerConnection = 64
	maxConnections     = 64
	// pieceBytes is the most that one request of a longer read or write carries, so that one call keeps several
	// connections busy.
	pieceBytes = 2 << 20

	defaultInFlightBytes    = 64 << 20
	defaultHandshakeTimeout = 30 * time.Second
)

// Options are what a client asks for. The zero value suits plain reading and writing.
type Options struct {
	// TLS must be set for a target with TLS. Whenever it is set, TLS is used. ServerName defaults to the target's.
	TLS *tls.Config
	// Contexts are the exact names of the metadata contexts to negotiate. Info tells which of them the server has.
	Contexts []string
	// Connections is how many to open: 1 if 0, at most 64. More than one is used only if the server announces
	// FlagCanMultiConn.
	Connections int
	// MaxInFlightBytes bounds the payload of requests in flight on all connections; 64 MiB if 0.
	MaxInFlightBytes int64
	// HandshakeTimeout bounds Dial, List and Inspect, in addition to their context; 30 s if 0.
	HandshakeTimeout time.Duration
	// Dial makes a connection if dialing the target's address is not the way to do it.
	Dial func(ctx context.Context) (net.Conn, error)

	// most is the best framing to ask for; tests lower it.
	most *headers
}

// Client is one export of a server.
type Client struct {
	info     Info
	conns    []*clientConn
	contexts []string
	budget   *budget
	slots    []*slot
	free     chan *slot
	calls    chan *call
	next     atomic.Uint32

	// dead is closed by the first failure. cause is set before that.
	dead    chan struct{}
	failing sync.Once
	cause   error
	running sync.WaitGroup
	// grace is abandonGrace, except in tests.
	grace time.Duration
	// disconnect is held during disconnectAll.
	disconnect sync.Mutex
	closing    atomic.Bool
}

// Dial opens an export. Errors are those of the network and of TLS, *OptionError (ErrUnknownExport, ErrTLS) and ErrProtocol.
func Dial(ctx context.Context, t Target, o Options) (*Client, error) {
	if o.Connections < 0 || o.Connections > maxConnections || o.MaxInFlightBytes < 0 {
		return nil, fmt.Errorf("nbd: %d connections with %d bytes in flight", o.Connections, o.MaxInFlightBytes)
	}
	o.Contexts = slices.Compact(slices.Sorted(slices.Values(o.Contexts)))
	c, err := openClient(ctx, t, o)
	if err != nil {
		return nil, fmt.Errorf("open NBD export %q: %w", t.Export, err)
	}
	return c, nil
}

func openClient(ctx context.Context, t Target, o Options) (*Client, error) {
	first, info, err := openConnection(ctx, t, o)
	if err != nil {
		return nil, err
	}
	hands := []*clientHandshake{first}
	want := max(o.Connections, 1)
	if !info.Flags.Has(FlagCanMultiConn) {
		want = 1
	}
	for len(hands) < want && err == nil {
		var h *clientHandshake
		if h, err = openAnother(ctx, t, o, first, info); err == nil {
			hands = append(hands, h)
		}
	}
	if err != nil {
		for _, h := range hands {
			err = errors.Join(err, h.nc.Close())
		}
		return nil, err
	}
	return newClient(hands, info, o), nil
}

// openAnother opens one more connection, and checks that it is to the same export.
func openAnother(ctx context.Context, t Target, o Options, first *clientHandshake, info Info) (*clientHandshake, error) {
	h, i, err := openConnection(ctx, t, o)
	if err != nil {
		return nil, err
	}
	if i.Bytes != info.Bytes || i.Flags != info.Flags || h.headers != first.headers || !slices.Equal(i.Contexts, info.Contexts) {
		return nil, errors.Join(protocolError("the export is another one on another connection"), h.nc.Close())
	}
	return h, nil
}

// openConnection opens one connection and takes it to the transmission phase.
func openConnection(ctx context.Context, t Target, o Options) (*clientHandshake, Info, error) {
	var info Info
	h, err := openHandshake(ctx, t, o, func(h *clientHandshake) error {
		most := extendedHeaders
		if o.most != nil {
			most = *o.most
		}
		if err := h.negotiateHeaders(most); err != nil {
			return err
		}
		if err := h.selectContexts(t.Export, o.Contexts); err != nil {
			return err
		}
		var err error
		info, err = h.beginTransmission(t.Export)
		return err
	})
	if err != nil {
		return nil, info, err
	}
	for _, name := range o.Contexts {
		if _, ok := h.ids[name]; ok {
			info.Contexts = append(info.Contexts, name)
		}
	}
	return h, info, nil
}

// openHandshake connects, starts TLS if configured, and runs the rest of the handshake, all within the handshake timeout.
func openHandshake(ctx context.Context, t Target, o Options, rest func(*clientHandshake) error) (*clientHandshake, error) {
	if t.TLS && o.TLS == nil {
		return nil, fmt.Errorf("%w: the target demands it and there is no TLS configuration", ErrTLS)
	}
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(o.HandshakeTimeout, defaultHandshakeTimeout))
	defer cancel()
	connect := o.Dial
	if connect == nil {
		connect = t.dialAddress
	}
	nc, err := connect(ctx)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = nc.SetDeadline(longAgo) })
	h := &clientHandshake{wire: newWire(nc)}
	err = h.answerGreeting()
	if err == nil && o.TLS != nil {
		err = h.upgradeToTLS(ctx, tlsConfig(o.TLS, t.ServerName))
	}
	if err == nil {
		err = rest(h)
	}
	if !stop() {
		err = errors.Join(context.Cause(ctx), err)
	}
	if err != nil {
		return nil, errors.Join(err, h.nc.Close())
	}
	return h, nil
}

// tlsConfig sets the server's name if the caller has not, and requires TLS 1.2 or later.
func tlsConfig(config *tls.Config, serverName string) *tls.Config {
	config = config.Clone()
	config.ServerName = cmp.Or(config.ServerName, serverName)
	config.MinVersion = max(config.MinVersion, tls.VersionTLS12)
	return config
}

func newClient(hands []*clientHandshake, info Info, o Options) *Client {
	n := len(hands) * slotsPerConnection
	c := &Client{
		info: info, contexts: info.Contexts, dead: make(chan struct{}),
		budget: newBudget(cmp.Or(o.MaxInFlightBytes, defaultInFlightBytes)),
		free:   make(chan *slot, n), calls: make(chan *call, n), grace: abandonGrace,
	}
	for i := range n {
		s := &slot{handle: uint64(i)}
		c.slots = append(c.slots, s)
		c.free <- s
	}
	for _, h := range hands {
		k := newClientConn(c, h)
		c.conns = append(c.conns, k)
		c.running.Go(k.runToEnd)
	}
	return c
}

// Info returns what the server says about the export.
func (c *Client) Info() Info {
	i := c.info
	i.Contexts = slices.Clone(i.Contexts)
	return i
}

// Connections returns how many connections the client has.
func (c *Client) Connections() int { return len(c.conns) }

// Done is closed when the client is dead.
func (c *Client) Done() <-chan struct{} { return c.dead }

// Err returns why the client is dead, or nil while it lives.
func (c *Client) Err() error {
	select {
	case <-c.dead:
		return c.cause
	default:
		return nil
	}
}

// failWith ends the client with its first cause.
func (c *Client) failWith(cause error) {
	c.failing.Do(func() {
		c.cause = cause
		close(c.dead)
		for _, k := range c.conns {
			if k.nc.SetDeadline(longAgo) != nil {
				k.nc.Close() //nolint:errcheck // it has ended already
			}
		}
	})
}

// Close ends the connections at once. What is in flight fails with ErrClosed. It returns nil, and can be called again.
func (c *Client) Close() error {
	c.failWith(ErrClosed)
	c.running.Wait()
	return nil
}

// Disconnect waits for what is in flight, says goodbye on each connection, and closes the client. Calls that begin
// after it fail with ErrClosed. An error means that the end was not in order; it is the context's, or why the client
// died.
func (c *Client) Disconnect(ctx context.Context) error {
	c.closing.Store(true)
	err := c.disconnectAll(ctx)
	return errors.Join(err, c.Close())
}

func (c *Client) disconnectAll(ctx context.Context) error {
	c.disconnect.Lock()
	defer c.disconnect.Unlock()
	for range c.slots { // With every slot held, nothing is in flight.
		select {
		case <-c.free:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-c.dead:
			return c.deathCause()
		}
	}
	for _, k := range c.conns {
		k.queue <- nil
	}
	for _, k := range c.conns {
		select {
		case <-k.ended:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return c.deathCause()
}

// deathCause returns why the client died, or nil if that was intended.
func (c *Client) deathCause() error {
	if err := c.Err(); !errors.Is(err, ErrClosed) {
		return err
	}
	return nil
}
