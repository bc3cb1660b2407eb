package relay

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/varvebackup/varve/internal/errclass"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func identity(uid string, fill byte) Identity {
	return Identity{UID: uid, Token: bytes.Repeat([]byte{fill}, 32)}
}

// target is a Server whose streams go to a unix socket that echoes what it gets.
type target struct {
	*testing.T
	address string
	// takeOver is what TakeOver returns; taken counts its calls.
	takeOver error
	taken    chan struct{}
	served   chan error
	cancel   context.CancelFunc
}

func newTarget(t *testing.T, id Identity) *target {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "echo")
	echo, err := new(net.ListenConfig).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			c, err := echo.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	x := &target{T: t, address: listener.Addr().String(), taken: make(chan struct{}, 100), served: make(chan error, 1)}
	s := &Server{
		Identity: id, Sockets: map[Stream]string{Libvirt: socket}, Log: slog.New(slog.DiscardHandler),
		TakeOver: func(context.Context) error {
			x.taken <- struct{}{}
			return x.takeOver
		},
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	x.cancel = cancel
	go func() { x.served <- s.Serve(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		_ = echo.Close()
		if err := <-x.served; err != nil {
			t.Error(err)
		}
	})
	return x
}

func (x *target) open(id Identity) (*Source, string) {
	x.Helper()
	socket := filepath.Join(x.TempDir(), "source")
	source, err := Open(x.Context(), id, x.address, map[Stream]string{Libvirt: socket}, slog.New(slog.DiscardHandler))
	if err != nil {
		x.Fatal(err)
	}
	x.Cleanup(func() { _ = source.Close() }) // the test may have closed it
	return source, socket
}

// exchange sends data through a socket and returns what comes back until the end.
func exchange(t *testing.T, socket, data string) (string, error) {
	t.Helper()
	c, err := new(net.Dialer).DialContext(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, data); err != nil {
		return "", err
	}
	if err := c.(*net.UnixConn).CloseWrite(); err != nil {
		return "", err
	}
	back, err := io.ReadAll(c)
	return string(back), err
}

func TestRelay_carriesBothWaysToTheEnd(t *testing.T) {
	t.Parallel()
	x := newTarget(t, identity("m", 1))
	source, socket := x.open(identity("m", 1))
	for range 2 {
		want := strings.Repeat("memory", 100000)
		if got, err := exchange(t, socket, want); err != nil || got != want {
			t.Errorf("%d bytes of %d came back, %v", len(got), len(want), err)
		}
	}
	if err := source.Err(); err != nil {
		t.Error(err)
	}
}

func TestRelay_needsTheTokenOfThisMigration(t *testing.T) {
	t.Parallel()
	for name, other := range map[string]Identity{"token": identity("m", 2), "migration": identity("n", 1)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newTarget(t, identity("m", 1))
			source, socket := x.open(other)
			if got, _ := exchange(t, socket, "hello"); got != "" {
				t.Errorf("it came back: %q", got)
			}
			if source.Close() != nil || source.Err() == nil {
				t.Errorf("the source does not say why: %v", source.Err())
			}
			if err := other.HandOver(t.Context(), x.address); err == nil || len(x.taken) > 0 {
				t.Errorf("a stranger's word counts: %v", err)
			}
		})
	}
	for _, none := range []Identity{{UID: "m"}, {UID: "m", Token: make([]byte, 15)}, {Token: make([]byte, 32)}} {
		if err := none.Check(); !errors.Is(err, errclass.Invalid) {
			t.Errorf("%+v: %v", none, err)
		}
	}
}

// Whoever stands between the two can pass on what they say, but not their proofs, which are of one TLS connection.
func TestRelay_proofsCannotBePassedOn(t *testing.T) {
	t.Parallel()
	x := newTarget(t, identity("m", 1))
	secure, err := serverConfig()
	if err != nil {
		t.Fatal(err)
	}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", secure)
	if err != nil {
		t.Fatal(err)
	}
	between := make(chan error, 1)
	go func() {
		fromSource, err := listener.Accept()
		if err != nil {
			between <- err
			return
		}
		defer fromSource.Close()
		dialer := &tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, NextProtos: []string{protocolName}}}
		toTarget, err := dialer.DialContext(t.Context(), "tcp", x.address)
		if err != nil {
			between <- err
			return
		}
		defer toTarget.Close()
		proof := make([]byte, proofBytes)
		if _, err := io.ReadFull(fromSource, proof); err != nil {
			between <- err
			return
		}
		if _, err := toTarget.Write(proof); err != nil {
			between <- err
			return
		}
		_, err = io.ReadFull(toTarget, proof)
		between <- err
	}()
	if err := identity("m", 1).HandOver(t.Context(), listener.Addr().String()); err == nil {
		t.Error("the source trusts the one between")
	}
	if err := <-between; err == nil {
		t.Error("the target trusts the one between")
	}
	_ = listener.Close()
	if len(x.taken) > 0 {
		t.Error("the guest runs on the target")
	}
}

// The proof of one side is no proof of the other.
func TestRelay_refusesItsOwnProof(t *testing.T) {
	t.Parallel()
	secure, err := serverConfig()
	if err != nil {
		t.Fatal(err)
	}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", secure)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := listener.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = io.CopyN(c, c, proofBytes)
	}()
	if err := identity("m", 1).HandOver(t.Context(), listener.Addr().String()); !errors.Is(err, ErrProof) {
		t.Errorf("a mirror: %v", err)
	}
	_ = listener.Close()
	<-done
}

func TestHandOver(t *testing.T) {
	t.Parallel()
	id := identity("m", 1)
	x := newTarget(t, id)
	x.takeOver = errors.New("the disk is locked")
	if err := id.HandOver(t.Context(), x.address); err == nil || !strings.Contains(err.Error(), "the disk is locked") {
		t.Errorf("a target that cannot: %v", err)
	}
	x.takeOver = nil
	if err := id.HandOver(t.Context(), x.address); err != nil || len(x.taken) != 2 {
		t.Errorf("%v, %d calls", err, len(x.taken))
	}
	// Then the target has no more to do with the source.
	if err := <-x.served; err != nil {
		t.Error(err)
	}
	x.served <- nil
	if err := id.HandOver(t.Context(), x.address); err == nil {
		t.Error("the target still listens")
	}
}

func TestServer_boundsStrangers(t *testing.T) {
	t.Parallel()
	id := identity("m", 1)
	x := newTarget(t, id)
	var strangers []net.Conn
	for range maxConnections {
		c, err := new(net.Dialer).DialContext(t.Context(), "tcp", x.address)
		if err != nil {
			t.Fatal(err)
		}
		strangers = append(strangers, c)
	}
	if err := id.HandOver(t.Context(), x.address); err == nil {
		t.Error("one more is served")
	}
	for _, c := range strangers {
		_ = c.Close()
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for id.HandOver(ctx, x.address) != nil { // until they are gone
		if ctx.Err() != nil {
			t.Fatal("the source is not served after the strangers have left")
		}
	}
}

func TestSource_endsWithItsContext(t *testing.T) {
	t.Parallel()
	x := newTarget(t, identity("m", 1))
	source, socket := x.open(identity("m", 1))
	c, err := new(net.Dialer).DialContext(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "x"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if err := source.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("the connection outlives its source")
	}
	if source.Err() != nil {
		t.Errorf("an end that was asked for counts as a failure: %v", source.Err())
	}
}
