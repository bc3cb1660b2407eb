package relay

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"sync"

	"github.com/varvebackup/varve/internal/privatesocket"
)

// Source is the source's side: unix sockets whose connections go to the target.
type Source struct {
	listeners []net.Listener
	cancel    context.CancelFunc
	work      sync.WaitGroup

	mu  sync.Mutex
	err error
}

// Open listens on a private unix socket for each stream, and replaces what an earlier migration left there. Every
// connection to it becomes one to the target at address. Close ends all of it.
func Open(
	ctx context.Context, id Identity, address string, sockets map[Stream]string, log *slog.Logger,
) (*Source, error) {
	if err := id.Check(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	s := &Source{cancel: cancel}
	for stream, path := range sockets {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, errors.Join(fmt.Errorf("listen for %s: %w", path, err), s.Close())
		}
		listener, err := privatesocket.Listen(ctx, path)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("listen for %s: %w", path, err), s.Close())
		}
		s.listeners = append(s.listeners, listener)
		s.work.Go(func() { s.acceptLocal(ctx, listener, id, address, stream, log) })
	}
	return s, nil
}

// Close ends the sockets and every connection, and returns when all work has ended.
func (s *Source) Close() error {
	s.cancel()
	var errs []error
	for _, listener := range s.listeners {
		errs = append(errs, listener.Close())
	}
	s.work.Wait()
	return errors.Join(errs...)
}

// Err returns why a connection to the target could not be made or broke, if one did. libvirt's own error does not say
// it.
func (s *Source) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

func (s *Source) setErr(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
	}
}

func (s *Source) acceptLocal(
	ctx context.Context, listener net.Listener, id Identity, address string, stream Stream, log *slog.Logger,
) {
	for {
		local, err := listener.Accept()
		if err != nil {
			return // closed
		}
		s.work.Go(func() {
			// The reason is kept before libvirt can see that the connection has ended.
			fail := func(err error) {
				if ctx.Err() == nil {
					s.setErr(err)
					log.Warn("migration's connection ended", "stream", string(stream), "error", err)
				}
			}
			remote, err := id.dialTarget(ctx, address, stream)
			if err != nil {
				fail(err)
				_ = local.Close() // nothing was carried
				return
			}
			carryStream(ctx, local.(*net.UnixConn), remote, fail) //nolint:forcetypeassert // privatesocket listens on unix
		})
	}
}

// carryStream copies both ways until both sides have ended, one has failed, or ctx ends. It closes both. It calls
// fail with the first failure, before it closes anything.
func carryStream(ctx context.Context, local *net.UnixConn, remote *tls.Conn, fail func(error)) {
	shut := func() {
		_ = local.Close() // whoever copies fails then
		_ = remote.NetConn().Close()
	}
	stop := context.AfterFunc(ctx, shut)
	defer stop()
	defer shut()
	var once sync.Once // the first error is the cause of the other one
	end := func(err error) {
		if err != nil {
			once.Do(func() { fail(err) })
			shut()
		}
	}
	var work sync.WaitGroup
	work.Go(func() { end(pumpStream(local, remote, local.CloseWrite)) })
	end(pumpStream(remote, local, remote.CloseWrite))
	work.Wait()
}

// pumpStream copies until the end and passes the end on.
func pumpStream(to io.Writer, from io.Reader, end func() error) error {
	if _, err := io.Copy(to, from); err != nil {
		return err
	}
	if err := end(); err != nil && !errors.Is(err, net.ErrClosed) {
		return nil // the other side has left already: it needs no end
	}
	return nil
}
