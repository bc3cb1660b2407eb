package endpoint_test

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

	"go.uber.org/goleak"

	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/export/endpoint"
	"github.com/varvebackup/varve/internal/export/exporttest"
	"github.com/varvebackup/varve/internal/export/server"
	"github.com/varvebackup/varve/test/authority"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const token = "an-export-token"

// site is an export server on the loopback interface that can be stopped and started again at the same address.
type site struct {
	tb      testing.TB
	address string
	ca      []byte
	config  server.Config
	mu      sync.Mutex
	stop    func()
}

// open starts a server of these volumes.
func open(tb testing.TB, volumes ...export.Volume) *site {
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
	s := &site{tb: tb, address: "127.0.0.1:0", ca: ca}
	s.config = server.Config{
		Token: func() ([]byte, error) { return []byte(token), nil }, Log: slog.New(slog.DiscardHandler),
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &certificate, nil },
	}
	s.serve(volumes...)
	s.start()
	tb.Cleanup(func() { s.kill() })
	return s
}

// serve changes what the next start serves.
func (s *site) serve(volumes ...export.Volume) {
	byName := exporttest.Volumes{}
	s.config.Names = nil
	for _, v := range volumes {
		byName[v.Info().Name] = v
		s.config.Names = append(s.config.Names, v.Info().Name)
	}
	s.config.Volumes = byName
}

func (s *site) start() {
	s.mu.Lock()
	defer s.mu.Unlock()
	l, err := net.Listen("tcp", s.address)
	if err != nil {
		s.tb.Error(err)
		return
	}
	s.address = l.Addr().String()
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

// kill ends the server, and resets its connections.
func (s *site) kill() {
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

func (s *site) url(path string) string { return "https://localhost" + path }

// options reach the server by the name in its certificate.
func (s *site) options() endpoint.Options {
	return endpoint.Options{
		Authorities: func(context.Context) ([]byte, error) { return s.ca, nil },
		Token:       func(context.Context) (string, error) { return token, nil },
		Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, s.address)
		},
		FirstPause: time.Millisecond, LongestPause: 20 * time.Millisecond, Patience: 30 * time.Second,
	}
}

func newClient(tb testing.TB, o endpoint.Options) *endpoint.Client {
	tb.Helper()
	c := endpoint.New(o)
	tb.Cleanup(c.Close)
	return c
}

// cutting resets connections after at most a number of bytes each, until some were cut.
func cutting(o endpoint.Options, seed uint64, most int, times int64) endpoint.Options {
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
