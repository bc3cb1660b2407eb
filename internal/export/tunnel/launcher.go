package tunnel

import (
	"cmp"
	"context"
	crand "crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/guard"
)

// Config says how a launcher reaches the far end. Zeroes stand for the defaults that the comments give.
type Config struct {
	// Address is host:port.
	Address string
	// ServerName is what the far end's certificate must be for.
	ServerName string
	// CA returns the authorities that may have signed it. It is called for each connection.
	CA func() (*x509.CertPool, error)
	// BackupUID is at most 64 bytes.
	BackupUID string
	// Token returns the token of the backup. It is called for each connection.
	Token func() ([]byte, error)

	// Requests is how many may be in flight; 1024. The far end is told. Each costs some 500 bytes.
	Requests int
	// Workers is how many requests are worked on at once, each with what its volume needs for one Read; 8.
	Workers int
	// Keepalive is the interval of pings; 4 s. After three without a byte from the far end, which is 12 to 16 s, the
	// connection is dead.
	Keepalive time.Duration
	// HandshakeTimeout is how long a connection may take until both sides have proven themselves; 10 s.
	HandshakeTimeout time.Duration
	// MinBackoff and MaxBackoff are the first and the longest pause before another attempt; 100 ms and 5 s. A pause is
	// twice as long as the one before, less up to half of it at random.
	MinBackoff, MaxBackoff time.Duration

	// StateChanged, if set, is called when the state has changed, from one goroutine, and must not block.
	StateChanged func(State)
	// Log, if set, receives why connections ended, and the panics of volumes.
	Log *slog.Logger
	// Dial replaces the network, in tests.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// State is what becomes of a launcher's connection.
type State struct {
	// Connected says that both sides have proven themselves and the connection lives.
	Connected bool
	// Attempts counts connections that were tried, Sessions those that both sides have proven themselves on. Sessions-1
	// reconnects were needed.
	Attempts, Sessions int64
	// Err is why the last attempt failed, or the last session ended; nil before that, and while connected.
	Err error
}

func (c Config) withDefaults() Config {
	c.Requests = cmp.Or(c.Requests, 1024)
	c.Workers = cmp.Or(c.Workers, 8)
	c.Keepalive = cmp.Or(c.Keepalive, defaultKeepalive)
	c.HandshakeTimeout = cmp.Or(c.HandshakeTimeout, defaultHandshakeTimeout)
	c.MinBackoff = cmp.Or(c.MinBackoff, 100*time.Millisecond)
	c.MaxBackoff = max(cmp.Or(c.MaxBackoff, 5*time.Second), c.MinBackoff)
	if c.StateChanged == nil {
		c.StateChanged = func(State) {}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Dial == nil {
		c.Dial = new(net.Dialer).DialContext
	}
	return c
}

const (
	defaultKeepalive        = 4 * time.Second
	defaultHandshakeTimeout = 10 * time.Second
)

func (c Config) validate() error {
	switch {
	case c.Address == "" || c.ServerName == "":
		return errclass.Errorf(errclass.Invalid, "a tunnel needs an address and a server name")
	case c.CA == nil || c.Token == nil:
		return errclass.Errorf(errclass.Invalid, "a tunnel needs authorities and a token")
	case c.BackupUID == "" || len(c.BackupUID) > maxUIDBytes:
		return errclass.Errorf(errclass.Invalid, "backup UID %.80q is empty or longer than %d bytes", c.BackupUID, maxUIDBytes)
	case c.Requests < 0 || c.Workers < 0 || c.Keepalive < 0 || c.HandshakeTimeout < 0 || c.MinBackoff < 0 || c.MaxBackoff < 0:
		return errclass.Errorf(errclass.Invalid, "a limit of the tunnel is negative")
	}
	return nil
}

// launcher is one Run.
type launcher struct {
	cfg     Config
	volumes export.Volumes
	infos   []export.Info
	id      [launcherIDBytes]byte
	random  *rand.Rand
	state   State
}

// Run offers volumes to the far end until ctx ends, and then returns nil. It connects, serves what the far end asks for,
// and connects again when the connection has ended, for ever. It returns an error, Invalid, only if config or infos
// cannot be used. The far end reaches nothing but the volumes that infos name.
func Run(ctx context.Context, cfg Config, volumes export.Volumes, infos []export.Info) error {
	if err := cfg.validate(); err != nil {
		return err
	}
	if err := checkVolumes(infos); err != nil {
		return err
	}
	l := &launcher{cfg: cfg.withDefaults(), volumes: volumes, infos: slices.Clone(infos)}
	var seed [16]byte
	crand.Read(l.id[:]) //nolint:errcheck // it never fails
	crand.Read(seed[:]) //nolint:errcheck // it never fails
	l.random = rand.New(rand.NewPCG(binary.BigEndian.Uint64(seed[:]), binary.BigEndian.Uint64(seed[8:])))
	l.connectForever(ctx)
	return nil
}

func (l *launcher) connectForever(ctx context.Context) {
	var pauses backoff
	for ctx.Err() == nil {
		l.state.Attempts++
		useful, err := l.connectOnce(ctx)
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		l.state.Connected, l.state.Err = false, err
		l.cfg.StateChanged(l.state)
		if ctx.Err() != nil {
			return
		}
		l.cfg.Log.Warn("export tunnel is not connected", "address", l.cfg.Address, "backup", l.cfg.BackupUID, "attempt", l.state.Attempts, "error", err)
		if useful {
			pauses = backoff{}
		}
		sleepFor(ctx, pauses.nextPause(l.cfg, l.random))
	}
}

// backoff is how long the last pause was, without what chance took off; 0 for none.
type backoff struct{ last time.Duration }

// nextPause returns the next pause.
func (b *backoff) nextPause(cfg Config, random *rand.Rand) time.Duration {
	b.last = min(max(2*b.last, cfg.MinBackoff), cfg.MaxBackoff)
	return b.last - time.Duration(random.Int64N(int64(b.last)/2+1))
}

// connectOnce is a connection from its beginning to its end. useful says that it was worth having: the far end asked for
// something, or it lasted a keepalive. Then the next attempt does not wait for long.
func (l *launcher) connectOnce(ctx context.Context) (useful bool, err error) {
	nc, secure, socket, err := l.connectAndProve(ctx)
	if err != nil {
		return false, err
	}
	defer nc.Close() //nolint:errcheck // nothing of it is needed any more
	socket.enterSession()
	l.state.Connected, l.state.Err = true, nil
	l.state.Sessions++
	l.cfg.StateChanged(l.state)
	s := newServing(l, secure, socket)
	err = s.serveUntilEnd(ctx)
	return s.useful.Load(), err
}

// connectAndProve returns a connection on which both sides have proven themselves, or an error within HandshakeTimeout.
func (l *launcher) connectAndProve(ctx context.Context) (net.Conn, *tls.Conn, *socket, error) {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.HandshakeTimeout)
	defer cancel()
	authorities, err := l.cfg.CA()
	if err != nil {
		return nil, nil, nil, fmt.Errorf("authorities of the tunnel: %w", err)
	}
	if authorities == nil { // TLS would take the system's
		return nil, nil, nil, errclass.Errorf(errclass.Denied, "there are no authorities for the tunnel")
	}
	token, err := l.cfg.Token()
	if err != nil {
		return nil, nil, nil, fmt.Errorf("token of the tunnel: %w", err)
	}
	nc, err := l.cfg.Dial(ctx, "tcp", l.cfg.Address)
	if err != nil {
		return nil, nil, nil, errclass.Errorf(errclass.Transient, "dial the far end: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { nc.Close() }) //nolint:errcheck // what waits for it fails
	socket := newSocket(nc)
	secure := tls.Client(socket, &tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: authorities, ServerName: l.cfg.ServerName, NextProtos: []string{protocolName},
		DynamicRecordSizingDisabled: true,
	})
	err = secure.HandshakeContext(ctx)
	if err != nil {
		err = errclass.Errorf(handshakeClass(err), "TLS handshake with the far end: %w", err)
	} else {
		h := hello{lowest: lowestVersion, highest: highestVersion, launcher: l.id, session: uint64(l.state.Attempts), uid: l.cfg.BackupUID}
		err = introduceLauncher(secure, secure, h, token)
	}
	if !stop() {
		err = errors.Join(context.Cause(ctx), err)
	}
	if err != nil {
		nc.Close() //nolint:errcheck // it has failed already
		return nil, nil, nil, err
	}
	return nc, secure, socket, nil
}

// handshakeClass returns Denied if the far end is not who it should be.
func handshakeClass(err error) error {
	var verification *tls.CertificateVerificationError
	if errors.As(err, &verification) {
		return errclass.Denied
	}
	return errclass.Transient
}

// serveUntilEnd serves until the connection or ctx ends, and returns why.
func (s *serving) serveUntilEnd(ctx context.Context) error {
	all, ctx := errgroup.WithContext(ctx)
	stop := context.AfterFunc(ctx, func() { s.writer.socket.Close() }) //nolint:errcheck // what waits for it fails
	defer stop()
	run := func(part func() error) {
		all.Go(func() error { return s.endOnPanic(part) })
	}
	run(s.sendOffer)
	run(s.readRequests)
	run(func() error { return s.outbox.sendFrames(ctx, s.writer) })
	run(func() error {
		return keepAlive(ctx, s.writer.socket, s.outbox, s.cfg.Keepalive, func() { s.useful.Store(true) })
	})
	for range s.cfg.Workers {
		run(func() error { return s.workOnRequests(ctx) })
	}
	return all.Wait()
}

// endOnPanic makes a panic an error of the connection: the launcher has a guest to run.
func (s *serving) endOnPanic(part func() error) error {
	err := guard.Call(part)
	var panicked *guard.PanicError
	if errors.As(err, &panicked) {
		s.cfg.Log.Error("export tunnel panicked", "panic", fmt.Sprint(panicked.Value), "stack", panicked.Stack)
	}
	return err
}
