package tunnel

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"

	"github.com/varvebackup/varve/internal/errclass"
)

var (
	errDisplaced = errors.New("tunnel: too many unproven connections")
	errReplaced  = errclass.New(errclass.Transient, "tunnel: the launcher has connected again")
)

// candidate is a connection that has not proven anything yet.
type candidate struct{ cancel context.CancelCauseFunc }

// maxLeaving bounds the connections that have lost their place and have not ended yet: ending takes a moment.
const maxLeaving = 64

// addCandidate gives a connection a place among the unproven ones. If all are taken, the oldest gives way: a launcher
// needs milliseconds, and a stranger can only wait.
func (s *Server) addCandidate(c *candidate, limits Limits) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.unproven) >= limits.Handshakes+maxLeaving {
		return false
	}
	if n := len(s.unproven) - limits.Handshakes; n >= 0 {
		s.unproven[n].cancel(errDisplaced) // those before it are leaving
	}
	s.unproven = append(s.unproven, c)
	return true
}

func (s *Server) removeCandidate(c *candidate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unproven = slices.DeleteFunc(s.unproven, func(other *candidate) bool { return other == c })
}

// serveConnection is a connection from its beginning to its end.
func (s *Server) serveConnection(ctx context.Context, nc net.Conn, secure *tls.Config, limits Limits) {
	defer nc.Close() //nolint:errcheck // the peer may have closed it first
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(ctx, func() { nc.Close() }) //nolint:errcheck // what waits for it fails
	defer stop()
	socket := newSocket(nc)
	conn := tls.Server(socket, secure)
	session := newSession(s, conn, socket, limits, cancel)
	err := s.handleHandshake(ctx, conn, session, limits)
	if err != nil {
		s.countRefusal(ctx, nc.RemoteAddr(), err)
		return
	}
	s.counters.sessions.Add(1)
	defer s.counters.lost.Add(1)
	socket.enterSession()
	err = session.runToEnd(ctx)
	if errors.Is(err, ErrProtocol) {
		s.counters.breaches.Add(1)
	}
	if ctx.Err() == nil || errors.Is(context.Cause(ctx), errReplaced) {
		s.logger().Warn("export tunnel ended", "peer", nc.RemoteAddr().String(), "backup", s.BackupUID, "error", err)
	}
}

// handleHandshake lets a launcher in, or fails. Then nothing is left of the session.
func (s *Server) handleHandshake(ctx context.Context, conn *tls.Conn, session *session, limits Limits) error {
	c := &candidate{session.cancel}
	if !s.addCandidate(c, limits) {
		return errDisplaced
	}
	defer s.removeCandidate(c)
	// The time limit ends the handshake alone.
	shaking, cancel := context.WithTimeout(ctx, limits.HandshakeTimeout)
	defer cancel()
	stop := context.AfterFunc(shaking, func() { session.socket.Close() }) //nolint:errcheck // what waits for it fails
	err := conn.HandshakeContext(shaking)
	if err == nil {
		err = s.admitSession(conn, session)
	}
	if !stop() {
		err = errors.Join(context.Cause(shaking), err)
	}
	if err != nil {
		s.forgetSession(session)
	}
	return err
}

func (s *Server) admitSession(conn *tls.Conn, session *session) error {
	token, err := s.Token()
	if err != nil {
		s.logger().Error("export tunnel has no token", "backup", s.BackupUID, "error", err)
		token = nil // then every proof is wrong
	}
	_, err = admitLauncher(conn, conn, admission{uid: s.BackupUID, token: token, claim: func(h hello) refusal { return s.claimPlace(session, h) }})
	return err
}

// claimPlace decides whether a launcher that has proven itself becomes the one. While a session lives, only a newer
// session of the same launcher takes its place: that launcher knows that the old connection is of no use any more, as
// after a network break that this side has not noticed. Any other launcher waits until the session has ended, which takes
// three keepalives at most if its peer is dead: the token can be read in the namespace of the backup, so that who holds it
// must not be able to cut off a launcher that is at work. An older session of the same launcher is a connection that
// launcher has given up.
func (s *Server) claimPlace(newcomer *session, h hello) refusal {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.launcher == s.last.launcher && h.session <= s.last.session {
		return refusedConflict
	}
	if s.current != nil {
		if h.launcher != s.last.launcher {
			return refusedConflict
		}
		s.current.cancel(errReplaced)
		s.counters.replaced.Add(1)
		s.setUpLocked(nil)
	}
	s.current, s.last = newcomer, h
	return accepted
}

// forgetSession gives up the session's place.
func (s *Server) forgetSession(gone *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == gone {
		s.current = nil
		s.setUpLocked(nil)
	}
}

// openFor lets requests go to the session, if it still has its place.
func (s *Server) openFor(session *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == session {
		s.setUpLocked(session)
	}
}

func (s *Server) setUpLocked(up *session) {
	if s.up == up {
		return
	}
	s.up = up
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

func (s *Server) countRefusal(ctx context.Context, peer net.Addr, err error) {
	var refused *refusedError
	switch {
	case errors.As(err, &refused):
		switch refused.why {
		case refusedVersion:
			s.counters.versions.Add(1)
		case refusedConflict:
			s.counters.conflicts.Add(1)
		case refusedProof, accepted:
			s.counters.proofs.Add(1)
		}
		s.logRefusal("export tunnel refused a launcher", peer, err)
		return
	case errors.Is(err, errDisplaced), errors.Is(context.Cause(ctx), errDisplaced):
		s.counters.displaced.Add(1)
		err = errDisplaced
	case ctx.Err() != nil:
		return // the server ends
	case errors.Is(err, io.EOF):
		err = fmt.Errorf("it left: %w", io.ErrUnexpectedEOF)
	}
	s.counters.handshakes.Add(1)
	s.logRefusal("export tunnel handshake failed", peer, err)
}
