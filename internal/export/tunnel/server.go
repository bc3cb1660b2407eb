package tunnel

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export"
)

// Limits bound what a Server costs. A zero stands for the default, which the comments give.
type Limits struct {
	// Requests is how many may be in flight; 256, and no more than the launcher takes. One more waits. Each takes at most
	// 256 KiB for what has arrived and was not read, or is on the way.
	Requests int
	// WindowBytes is the most of that for a request whose reader waits for the network; 1 MiB, at least 256 KiB. What is
	// above 256 KiB comes from SharedBytes. More is good for networks with long ways only: it leaves the processor's caches.
	WindowBytes int64
	// SharedBytes is what the requests share beyond 256 KiB each; 64 MiB.
	SharedBytes int64
	// Handshakes is how many connections may be unproven; 16. One more takes the place of the oldest. Each may send 64 KiB.
	Handshakes int
	// HandshakeTimeout is how long a connection may be unproven; 10 s.
	HandshakeTimeout time.Duration
	// Keepalive is the interval of pings; 4 s. After three without a byte from the launcher, which is 12 to 16 s, the
	// connection is dead.
	Keepalive time.Duration
}

func (l Limits) withDefaults() Limits {
	l.Requests = cmp.Or(l.Requests, 256)
	l.WindowBytes = min(max(cmp.Or(l.WindowBytes, 1<<20), minCreditBytes), maxCreditBytes)
	l.SharedBytes = cmp.Or(l.SharedBytes, 64<<20)
	l.Handshakes = cmp.Or(l.Handshakes, 16)
	l.HandshakeTimeout = cmp.Or(l.HandshakeTimeout, defaultHandshakeTimeout)
	l.Keepalive = cmp.Or(l.Keepalive, defaultKeepalive)
	return l
}

// Server is the far end of the tunnel of one backup, and the volumes that the launcher offers. Its fields must not change
// once it serves.
type Server struct {
	// TLS has the certificate, or GetCertificate. The server takes no version but 1.3 and no protocol but its own.
	TLS *tls.Config
	// BackupUID is at most 64 bytes.
	BackupUID string
	// Token returns the token of the backup. It is called for each connection.
	Token  func() ([]byte, error)
	Limits Limits
	// Log, if set, receives who was refused and why sessions ended. It never receives a token or a proof.
	Log *slog.Logger

	buffers buffers
	// places has an element for each request whose reader has not returned; see placesFor.
	places     chan struct{}
	placesOnce sync.Once
	// shared is how much of Limits.SharedBytes is lent.
	shared   atomic.Int64
	counters counters
	// complaints limits what strangers can have logged.
	complaints complaints

	mu       sync.Mutex
	unproven []*candidate // oldest first
	// current is the session whose launcher was let in; it is up once its offer has arrived.
	current *session
	up      *session
	// last is the hello of the last session that was let in.
	last hello
	// changed is closed when up changes.
	changed chan struct{}
}

// Counters are numbers of connections since the server was made.
type Counters struct {
	// Sessions were let in, and those of them that ended are Lost.
	Sessions, Lost int64
	// Replaced sessions were ended for a newer one of the same launcher. They are also Lost.
	Replaced int64
	// RefusedProofs had a wrong, replayed or empty proof, or one for another backup.
	RefusedProofs int64
	// RefusedVersions spoke no common version, and RefusedConflicts came while another launcher was connected.
	RefusedVersions, RefusedConflicts int64
	// FailedHandshakes did not get as far as a proof: no TLS, no hello, too slow or too many bytes. Displaced are those of
	// them that others took the place of.
	FailedHandshakes, Displaced int64
	// Breaches are sessions that ended because the launcher broke the protocol. They are also Lost.
	Breaches int64
}

type counters struct {
	sessions, lost, replaced, proofs, versions, conflicts, handshakes, displaced, breaches atomic.Int64
}

// Counters returns the present numbers.
func (s *Server) Counters() Counters {
	c := &s.counters
	return Counters{
		Sessions: c.sessions.Load(), Lost: c.lost.Load(), Replaced: c.replaced.Load(), RefusedProofs: c.proofs.Load(), RefusedVersions: c.versions.Load(),
		RefusedConflicts: c.conflicts.Load(), FailedHandshakes: c.handshakes.Load(), Displaced: c.displaced.Load(), Breaches: c.breaches.Load(),
	}
}

// complaints lets through ten lines at once, and one a second after that.
type complaints struct {
	once    sync.Once
	limiter *rate.Limiter
	missed  atomic.Int64
}

// logRefusal logs about a peer that has proven nothing, unless too many such lines were logged already.
func (s *Server) logRefusal(text string, peer net.Addr, err error) {
	c := &s.complaints
	c.once.Do(func() { c.limiter = rate.NewLimiter(1, 10) })
	if !c.limiter.Allow() {
		c.missed.Add(1)
		return
	}
	s.logger().Warn(text, "peer", peer.String(), "backup", s.BackupUID, "error", err, "notLogged", c.missed.Swap(0))
}

func (s *Server) logger() *slog.Logger {
	if s.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return s.Log
}

// acceptPause is how long the server waits when it has no file descriptors or memory left.
const acceptPause = 100 * time.Millisecond

// Serve accepts connections until ctx ends, and then ends them and returns nil. Any other error is the listener's, or
// Invalid if the server's fields cannot be used. Serve closes the listener.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	if s.TLS == nil || s.Token == nil || s.BackupUID == "" || len(s.BackupUID) > maxUIDBytes {
		return errors.Join(errclass.Errorf(errclass.Invalid, "a tunnel's server needs a certificate, a token and a backup UID of at most %d bytes", maxUIDBytes), l.Close())
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { l.Close() }) //nolint:errcheck // Accept fails
	defer stop()
	var connections sync.WaitGroup
	err := s.acceptConnections(ctx, l, &connections)
	if ctx.Err() != nil {
		err = nil // the end was asked for
	} else {
		cancel()
	}
	connections.Wait()
	return err
}

func (s *Server) acceptConnections(ctx context.Context, l net.Listener, connections *sync.WaitGroup) error {
	limits := s.Limits.withDefaults()
	secure := s.TLS.Clone()
	secure.MinVersion, secure.MaxVersion = tls.VersionTLS13, 0
	secure.NextProtos = []string{protocolName}
	secure.SessionTicketsDisabled = true
	secure.DynamicRecordSizingDisabled = true
	for {
		nc, err := l.Accept()
		switch {
		case err == nil:
			connections.Go(func() { s.serveConnection(ctx, nc, secure, limits) })
		case errors.Is(err, unix.ECONNABORTED):
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.ENOMEM):
			s.logger().Warn("export tunnel cannot accept", "error", err)
			if !sleepFor(ctx, acceptPause) {
				return nil
			}
		default:
			return fmt.Errorf("accept tunnel connection: %w", err)
		}
	}
}

// sleepFor reports whether the time has passed before ctx ended.
func sleepFor(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// placesFor returns the places of requests, over all sessions: what has arrived for a request outlives its session.
func (s *Server) placesFor(limits Limits) chan struct{} {
	s.placesOnce.Do(func() { s.places = make(chan struct{}, limits.Requests) })
	return s.places
}

// session returns the one that is up, or Transient.
func (s *Server) session() (*session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.up == nil {
		return nil, errclass.Errorf(errclass.Transient, "no launcher is connected for backup %s", s.BackupUID)
	}
	return s.up, nil
}

// Wait returns once a launcher is connected, or with the cause of the end of ctx.
func (s *Server) Wait(ctx context.Context) error {
	for {
		s.mu.Lock()
		up := s.up != nil
		if s.changed == nil {
			s.changed = make(chan struct{})
		}
		changed := s.changed
		s.mu.Unlock()
		if up {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Connected reports whether a launcher is connected.
func (s *Server) Connected() bool {
	_, err := s.session()
	return err == nil
}

// List returns the volumes that the launcher offers. Transient: no launcher is connected.
func (s *Server) List() ([]export.Info, error) {
	session, err := s.session()
	if err != nil {
		return nil, err
	}
	return slices.Clone(session.infos), nil
}

// Open implements export.Volumes. The volume outlives the connection: while there is none, what is asked of it fails with
// Transient. If a later launcher offers something else under its name, it fails with Expired.
func (s *Server) Open(_ context.Context, name string) (export.Volume, error) {
	session, err := s.session()
	if err != nil {
		return nil, err
	}
	i := findVolume(session.infos, name)
	if i < 0 {
		return nil, errclass.Errorf(errclass.NotFound, "backup %s has no volume %s", s.BackupUID, name)
	}
	return &volume{server: s, info: session.infos[i]}, nil
}
