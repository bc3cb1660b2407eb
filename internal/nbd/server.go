package nbd

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Limits bound what clients cost. A zero stands for the default, which the comments give.
type Limits struct {
	// Connections is how many may transmit at once; 64. One more is refused, unless it can take the place of one that
	// has been idle for IdleTimeout. As many again may be in their handshake; one more takes the place of the oldest.
	Connections int
	// MaxRequestBytes is the largest payload of a request; 32 MiB. The server announces it, and refuses larger ones.
	MaxRequestBytes int64
	// MaxInFlightBytes bounds a connection's payloads in flight, half of it for reads and half for writes; 64 MiB, and
	// at least twice MaxRequestBytes.
	MaxInFlightBytes int64
	// MaxMemoryBytes bounds the payloads of all connections together in the same way; 512 MiB, and at least
	// MaxInFlightBytes. Requests wait for memory. A connection takes at most some 4 MiB in addition.
	MaxMemoryBytes int64
	// Workers is how many requests of one connection backends work on at once; 16.
	Workers int
	// HandshakeTimeout is how long a client may take until it transmits; 30 s.
	HandshakeTimeout time.Duration
	// IdleTimeout is how long a client that requests nothing keeps its place when another needs it; 10 min. While there
	// are free places, it keeps its place forever.
	IdleTimeout time.Duration
	// StallTimeout is how long a client that neither takes its replies nor sends its payload keeps memory that others
	// wait for; 1 min.
	StallTimeout time.Duration
}

func (l Limits) withDefaults() Limits {
	l.Connections = cmp.Or(l.Connections, 64)
	l.MaxRequestBytes = min(cmp.Or(l.MaxRequestBytes, defaultMaxBlockBytes), maxBufferBytes)
	l.MaxInFlightBytes = max(cmp.Or(l.MaxInFlightBytes, defaultInFlightBytes), 2*l.MaxRequestBytes)
	l.MaxMemoryBytes = max(cmp.Or(l.MaxMemoryBytes, defaultMemoryBytes), l.MaxInFlightBytes)
	l.Workers = cmp.Or(l.Workers, 16)
	l.HandshakeTimeout = cmp.Or(l.HandshakeTimeout, defaultHandshakeTimeout)
	l.IdleTimeout = cmp.Or(l.IdleTimeout, 10*time.Minute)
	l.StallTimeout = cmp.Or(l.StallTimeout, time.Minute)
	return l
}

// defaultMemoryBytes is enough for eight connections at their limit.
const defaultMemoryBytes = 512 << 20

// Server serves exports. Its fields must not change once it serves. All but Exports may be zero.
type Server struct {
	Exports Exports
	// TLS, if set, is required of every client before anything else.
	TLS    *tls.Config
	Limits Limits
	// Log receives what clients did wrong, and the panics of backends.
	Log *slog.Logger

	buffers buffers

	mu        sync.Mutex
	listeners map[net.Listener]struct{}
	sessions  map[*session]struct{}
	draining  bool
	room      room
	running   sync.WaitGroup
}

// acceptPause is how long the server waits when it has no file descriptors or memory left.
const acceptPause = 100 * time.Millisecond

// Serve accepts connections until Shutdown, or until ctx ends, which ends the connections at once. Then it waits for
// its connections and returns nil. An error is the listener's. Serve closes the listener.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if !s.addListener(l) {
		return l.Close()
	}
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	var sessions sync.WaitGroup
	err := s.acceptConnections(ctx, l, &sessions)
	if s.removeListener(l) || ctx.Err() != nil {
		err = nil // the end was asked for
	} else {
		cancel()
		err = errors.Join(err, l.Close())
	}
	sessions.Wait()
	return err
}

func (s *Server) acceptConnections(ctx context.Context, l net.Listener, sessions *sync.WaitGroup) error {
	for {
		nc, err := l.Accept()
		switch {
		case err == nil:
			sessions.Go(func() {
				if err := s.ServeConn(ctx, nc); err != nil {
					s.logger().Warn("NBD connection ended", "client", nc.RemoteAddr().String(), "error", err)
				}
			})
		case errors.Is(err, unix.ECONNABORTED):
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.ENOMEM):
			s.logger().Warn("NBD server cannot accept", "error", err)
			if sleepFor(ctx, acceptPause) != nil {
				return err
			}
		default:
			return fmt.Errorf("accept NBD connection: %w", err)
		}
	}
}

func sleepFor(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// ServeConn serves one connection and closes it. An error says what went wrong with it. A client that leaves without a
// goodbye is no error.
func (s *Server) ServeConn(ctx context.Context, nc net.Conn) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	c := newSession(s, nc, cancel)
	if err := s.addSession(c); err != nil {
		return errors.Join(err, nc.Close())
	}
	defer s.removeSession(c)
	stop := context.AfterFunc(ctx, c.interruptIO)
	defer stop()
	err := c.serveConnection(ctx)
	c.nc.Close() //nolint:errcheck // the client may have closed it first
	return err
}

func (s *Server) logger() *slog.Logger {
	if s.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return s.Log
}

// Shutdown stops accepting, lets the requests that were received finish, and closes the connections. If ctx ends first,
// it ends the connections at once and returns the context's cause. The server cannot serve again.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	s.draining = true
	for l := range s.listeners {
		l.Close() //nolint:errcheck // its Serve returns
	}
	for c := range s.sessions {
		c.stopReceiving()
	}
	s.mu.Unlock()
	idle := make(chan struct{})
	go func() {
		s.running.Wait()
		close(idle)
	}()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	for c := range s.sessions {
		c.cancel(nil)
	}
	s.mu.Unlock()
	<-idle
	return context.Cause(ctx)
}

func (s *Server) addListener(l net.Listener) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining {
		return false
	}
	if s.listeners == nil {
		s.listeners = map[net.Listener]struct{}{}
	}
	s.listeners[l] = struct{}{}
	return true
}

// removeListener removes the listener, and reports whether Shutdown has closed it.
func (s *Server) removeListener(l net.Listener) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.listeners, l)
	return s.draining
}
