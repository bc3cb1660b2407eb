package proxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/varvebackup/varve/internal/export/podspec"
	"github.com/varvebackup/varve/test/authority"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const token = "a-token-of-a-client"

// site is a proxy on the loopback interface, with exports that it finds by their names.
type site struct {
	testing.TB
	// exports is the authority of exports, and outside that of the proxy's certificate.
	exports, outside *authority.Authority
	files            Files
	address          string
	client           *http.Client
	log              *logBuffer

	mu      sync.Mutex
	servers map[string]string // address by name and port
	dialled []string
}

type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

func open(tb testing.TB, limits Limits) *site {
	tb.Helper()
	s := &site{TB: tb, exports: authority.New(tb), outside: authority.New(tb), log: &logBuffer{}, servers: map[string]string{}}
	dir := s.outside.Files(tb)
	s.files = Files{Certificate: filepath.Join(dir, "server-cert.pem"), Key: filepath.Join(dir, "server-key.pem"), Authorities: filepath.Join(s.exports.Files(tb), "ca-cert.pem")}
	p := New(Options{Files: s.files, Limits: limits, Dial: s.dialExport, Log: slog.New(slog.NewTextHandler(s.log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	l := s.listen()
	s.address = l.Addr().String()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Serve(ctx, l) }()
	s.client = s.newClient(false)
	tb.Cleanup(func() {
		stop()
		if err := <-done; err != nil && limits.PartingTime == 0 {
			tb.Error(err)
		}
	})
	return s
}

func (s *site) listen() net.Listener {
	s.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.Fatal(err)
	}
	return l
}

// dialExport plays the cluster's DNS and network.
func (s *site) dialExport(ctx context.Context, network, address string) (net.Conn, error) {
	s.mu.Lock()
	s.dialled = append(s.dialled, address)
	real, ok := s.servers[address]
	s.mu.Unlock()
	if !ok {
		return nil, &net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", Name: address, IsNotFound: true}}
	}
	return (&net.Dialer{}).DialContext(ctx, network, real)
}

func (s *site) dials() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.dialled)
}

// lead makes a name in the cluster lead to an address.
func (s *site) lead(namespace, export, address string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.servers[podspec.ServiceHosts(namespace, export)[0]+":443"] = address
}

// upstream is an export's server.
type upstream struct {
	address            string
	connections, asked atomic.Int64
}

// serve starts the server of an export, with a certificate of its own.
func (s *site) serve(namespace, export string, handler http.HandlerFunc) *upstream {
	s.Helper()
	return s.serveAs(s.exports.Issue(s, export, podspec.ServiceHosts(namespace, export)...), namespace, export, handler)
}

func (s *site) serveAs(certificate tls.Certificate, namespace, export string, handler http.HandlerFunc) *upstream {
	s.Helper()
	u := &upstream{}
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			u.asked.Add(1)
			handler(w, r)
		}),
		ConnState: func(_ net.Conn, state http.ConnState) {
			if state == http.StateNew {
				u.connections.Add(1)
			}
		},
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug),
	}
	l := s.listen()
	u.address = l.Addr().String()
	done := make(chan struct{})
	go func() {
		defer close(done)
		server.Serve(tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS13})) // it ends with Close
	}()
	s.Cleanup(func() { server.Close(); <-done })
	s.lead(namespace, export, u.address)
	return u
}

func (s *site) roots() *x509.CertPool {
	return s.outside.Client.RootCAs
}

func (s *site) newClient(http2 bool) *http.Client {
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: s.roots(), ServerName: "localhost"}, ForceAttemptHTTP2: http2, DisableCompression: true}
	s.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// dial opens a connection to the proxy.
func (s *site) dial() *tls.Conn {
	s.Helper()
	conn, err := tls.Dial("tcp", s.address, &tls.Config{RootCAs: s.roots(), ServerName: "localhost"})
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { conn.Close() })
	return conn
}

func pathOf(namespace, export, path string) string {
	return podspec.ProxyPath(namespace, export) + path
}

// request returns a request with the token.
func (s *site) request(method, path string, header ...string) *http.Request {
	s.Helper()
	r, err := http.NewRequestWithContext(context.Background(), method, "https://"+s.address+path, http.NoBody)
	if err != nil {
		s.Fatal(err)
	}
	r.Header.Set(podspec.TokenHeader, token)
	for i := 0; i < len(header); i += 2 {
		r.Header.Del(header[i])
		if header[i+1] != "" {
			r.Header.Set(header[i], header[i+1])
		}
	}
	return r
}

// answer is an answer that was read to its end.
type answer struct {
	status int
	header http.Header
	body   []byte
	cut    error
}

func (s *site) do(client *http.Client, r *http.Request) answer {
	s.Helper()
	response, err := client.Do(r)
	if err != nil {
		s.Fatalf("%s %s: %v", r.Method, r.URL, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, response.Header, body, err}
}

func (s *site) ask(method, path string, header ...string) answer {
	s.Helper()
	return s.do(s.client, s.request(method, path, header...))
}

func until(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			tb.Fatalf("%s does not happen", what)
		}
	}
}

func writeAuthorities(tb testing.TB, path string, a *authority.Authority) {
	tb.Helper()
	text, err := os.ReadFile(filepath.Join(a.Files(tb), "ca-cert.pem"))
	if err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	if block, _ := pem.Decode(text); err != nil || block == nil {
		tb.Fatal(err)
	}
}
