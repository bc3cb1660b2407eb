package relay

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"

	"github.com/varvebackup/varve/internal/errclass"
)

const (
	// maxConnections bounds what the server serves at once. A migration needs three connections.
	maxConnections = 16
	// maxAnswerBytes bounds the target's answer to a handover.
	maxAnswerBytes = 1024
)

// Server is the target's side.
type Server struct {
	Identity
	// Sockets are the unix sockets that the streams go to.
	Sockets map[Stream]string
	// TakeOver is called when the source says that its guest is gone. Its error is the answer.
	TakeOver func(ctx context.Context) error
	Log      *slog.Logger
}

// Serve serves the listener until ctx ends or the guest has been taken over. Then it closes it and every connection,
// and returns when all work has ended. A listener that fails by itself is an error.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	if err := s.Check(); err != nil {
		return fmt.Errorf("serve migration: %w", err)
	}
	secure, err := serverConfig()
	if err != nil {
		return fmt.Errorf("serve migration: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var work sync.WaitGroup
	defer work.Wait()
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() }) // Accept fails then
	defer stop()
	places := make(chan struct{}, maxConnections)
	for {
		conn, err := listener.Accept()
		if ctx.Err() != nil {
			if err == nil {
				_ = conn.Close() // nobody serves it any more
			}
			return nil
		}
		if err != nil {
			cancel()
			return fmt.Errorf("serve migration: %w", err)
		}
		select {
		case places <- struct{}{}:
			work.Go(func() {
				defer func() { <-places }()
				if s.serveConnection(ctx, conn, secure) {
					cancel()
				}
			})
		default:
			_ = conn.Close() // strangers hold all places, for 10 seconds at most
		}
	}
}

// serveConnection says whether the target has taken the guest over, so that the source has no more to say.
func (s *Server) serveConnection(ctx context.Context, raw net.Conn, secure *tls.Config) bool {
	c := tls.Server(raw, secure)
	var stream Stream
	if err := shakeHands(ctx, c, s.admitSource(c, &stream)); err != nil {
		s.Log.Warn("migration refused a connection", "peer", raw.RemoteAddr().String(), "error", err)
		return false
	}
	defer c.Close() //nolint:errcheck // the peer may have closed it first
	if stream == Handover {
		return s.answerHandover(ctx, c)
	}
	fail := func(err error) {
		if ctx.Err() == nil {
			s.Log.Warn("migration's connection ended", "stream", string(stream), "error", err)
		}
	}
	if local, err := s.dialLocal(ctx, stream); err != nil {
		fail(err)
	} else {
		carryStream(ctx, local, c, fail)
	}
	return false
}

// dialLocal connects to where a stream goes.
func (s *Server) dialLocal(ctx context.Context, stream Stream) (*net.UnixConn, error) {
	path, known := s.Sockets[stream]
	if !known {
		return nil, fmt.Errorf("%w: unknown stream", errclass.Invalid)
	}
	local, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", path, err)
	}
	return local.(*net.UnixConn), nil //nolint:forcetypeassert // the network is unix
}

// answerHandover lets the guest run and says how that went: one byte, and the error.
func (s *Server) answerHandover(ctx context.Context, c *tls.Conn) bool {
	said := []byte{answerDone}
	err := s.TakeOver(ctx)
	if err != nil {
		said = append([]byte{answerFailed}, err.Error()...)
	}
	if _, sent := c.Write(said[:min(len(said), maxAnswerBytes)]); sent != nil {
		s.Log.Warn("migration's answer to the source was not sent", "error", sent)
	}
	return err == nil
}

// The first byte of an answer to a handover.
const (
	answerDone   = 'D'
	answerFailed = 'F'
)

// HandOver tells the target that the source's guest is gone, and returns when the target's guest runs. It can be
// repeated.
func (i Identity) HandOver(ctx context.Context, address string) error {
	c, err := i.dialTarget(ctx, address, Handover)
	if err != nil {
		return err
	}
	defer c.Close() //nolint:errcheck // the peer may have closed it first
	stop := context.AfterFunc(ctx, func() { _ = c.NetConn().Close() })
	defer stop()
	said, err := io.ReadAll(io.LimitReader(c, maxAnswerBytes))
	switch {
	case err != nil:
		return fmt.Errorf("hand the guest over: %w", err)
	case len(said) > 0 && said[0] == answerDone:
		return nil
	case len(said) > 0 && said[0] == answerFailed:
		return fmt.Errorf("hand the guest over: the target's launcher says: %s", said[1:])
	}
	return fmt.Errorf("hand the guest over: %w", io.ErrUnexpectedEOF)
}
