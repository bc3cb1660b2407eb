// Package exportsite has an export server on the loopback interface, for tests of what reads endpoints.
package exportsite

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/export/endpoint"
	"github.com/varvebackup/varve/internal/export/exporttest"
	"github.com/varvebackup/varve/internal/export/server"
	"github.com/varvebackup/varve/test/authority"
	"github.com/varvebackup/varve/test/port"
)

// Token is the token of every Site.
const Token = "an-export-token"

// Site is an export server that can be stopped and started again at the same address.
type Site struct {
	tb testing.TB
	// Address is where the server listens.
	Address string
	// CA is the certificate of the authority, in PEM.
	CA     []byte
	config server.Config
	mu     sync.Mutex
	stop   func()
}

// Open starts a server of these volumes.
func Open(tb testing.TB, volumes ...export.Volume) *Site {
	tb.Helper()
	dir := authority.New(tb).Files(tb)
	certificate, err := tls.LoadX509KeyPair(filepath.Join(dir, "server-cert.pem"), filepath.Join(dir, "server-key.pem"))
	if err != nil {
		tb.Fatal(err)
	}
	ca, err := os.ReadFile(filepath.Join(dir, "ca-cert.pem"))
	if err != nil {
		tb.Fatal(err)
	}
	address, release, err := port.Reserve()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(release)
	s := &Site{tb: tb, Address: address, CA: ca}
	s.config = server.Config{
		Token: func() ([]byte, error) { return []byte(Token), nil }, Log: slog.New(slog.DiscardHandler),
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &certificate, nil },
	}
	s.Serve(volumes...)
	s.Start()
	tb.Cleanup(func() { s.Kill() })
	return s
}

// Serve changes what the next start serves.
func (s *Site) Serve(volumes ...export.Volume) {
	byName := exporttest.Volumes{}
	s.config.Names = nil
	for _, v := range volumes {
		byName[v.Info().Name] = v
		s.config.Names = append(s.config.Names, v.Info().Name)
	}
	s.config.Volumes = byName
}

// Start starts the server again.
func (s *Site) Start() {
	s.mu.Lock()
	defer s.mu.Unlock()
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", s.Address)
	if err != nil {
		s.tb.Error(err)
		return
	}
	srv, err := server.New(s.config)
	if err != nil {
		s.tb.Error(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	conns := &openConns{Listener: l}
	go func() { done <- srv.Serve(ctx, conns) }()
	s.stop = func() {
		cancel()
		conns.reset()
		if err := <-done; err != nil {
			s.tb.Error(err)
		}
	}
}

// Kill ends the server, and resets its connections.
func (s *Site) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stop != nil {
		s.stop()
		s.stop = nil
	}
}

// openConns remembers connections, to reset them as the end of a process does.
type openConns struct {
	net.Listener
	mu    sync.Mutex
	conns []net.Conn
}

func (l *openConns) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.mu.Lock()
		l.conns = append(l.conns, c)
		l.mu.Unlock()
	}
	return c, err
}

func (l *openConns) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		_ = c.(*net.TCPConn).SetLinger(0)
		_ = c.Close()
	}
}

// URL returns the URL of a path.
func (s *Site) URL(path string) string { return "https://localhost" + path }

// Options reach the server by the name in its certificate.
func (s *Site) Options() endpoint.Options {
	return endpoint.Options{
		Authorities: func(context.Context) ([]byte, error) { return s.CA, nil },
		Token:       func(context.Context) (string, error) { return Token, nil },
		Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, s.Address)
		},
		FirstPause: time.Millisecond, LongestPause: 20 * time.Millisecond, Patience: 30 * time.Second,
	}
}

// NewClient returns a client that ends with the test.
func NewClient(tb testing.TB, o endpoint.Options) *endpoint.Client {
	tb.Helper()
	c := endpoint.New(o)
	tb.Cleanup(c.Close)
	return c
}

// Cut resets the first connections, each after at most a number of bytes.
func Cut(o endpoint.Options, seed uint64, most int, times int64) endpoint.Options {
	dial := o.Dial
	var mu sync.Mutex
	random := rand.New(rand.NewPCG(seed, 2))
	var left atomic.Int64
	left.Store(times)
	o.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if err != nil || left.Add(-1) < 0 {
			return c, err
		}
		mu.Lock()
		defer mu.Unlock()
		return &cutConn{Conn: c, left: random.IntN(most)}, nil
	}
	return o
}

type cutConn struct {
	net.Conn
	left int
}

var errCut = errors.New("the test cut the connection")

func (c *cutConn) Read(p []byte) (int, error) {
	if c.left <= 0 {
		_ = c.Conn.(*net.TCPConn).SetLinger(0)
		_ = c.Conn.Close()
		return 0, errCut
	}
	n, err := c.Conn.Read(p[:min(len(p), c.left)])
	c.left -= n
	return n, err
}
