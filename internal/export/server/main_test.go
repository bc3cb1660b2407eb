package server_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/export/exporttest"
	"github.com/varvebackup/varve/internal/export/server"
	"github.com/varvebackup/varve/test/authority"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const token = "an-export-token"

func knownToken() ([]byte, error) { return []byte(token), nil }

// site is a server that answers over TLS on the loopback interface.
type site struct {
	address, url string
	// ca is the file with the certificate that signed the server's, and roots what is in it.
	ca    string
	roots *x509.CertPool
	log   *logBuffer
	// client speaks HTTP/1.1.
	client *http.Client
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

// open starts a server of c, which has the token unless c says otherwise.
func open(tb testing.TB, c server.Config) *site {
	tb.Helper()
	if c.Token == nil {
		c.Token = knownToken
	}
	dir := authority.New(tb).Files(tb)
	certificate, err := tls.LoadX509KeyPair(filepath.Join(dir, "server-cert.pem"), filepath.Join(dir, "server-key.pem"))
	if err != nil {
		tb.Fatal(err)
	}
	if c.GetCertificate == nil {
		c.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &certificate, nil }
	}
	s := &site{ca: filepath.Join(dir, "ca-cert.pem"), roots: x509.NewCertPool(), log: &logBuffer{}}
	c.Log = slog.New(slog.NewTextHandler(s.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	pem, err := os.ReadFile(s.ca)
	if err != nil || !s.roots.AppendCertsFromPEM(pem) {
		tb.Fatal(err)
	}
	srv, err := server.New(c)
	if err != nil {
		tb.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ctx, l) }()
	s.address, s.url = l.Addr().String(), "https://"+l.Addr().String()
	s.client = s.newClient(tb, false)
	tb.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			tb.Error(err)
		}
	})
	return s
}

// openVolumes starts a server of these volumes.
func openVolumes(tb testing.TB, c server.Config, volumes ...export.Volume) *site {
	tb.Helper()
	byName := exporttest.Volumes{}
	c.Names = nil
	for _, v := range volumes {
		byName[v.Info().Name] = v
		c.Names = append(c.Names, v.Info().Name)
	}
	if c.Volumes == nil {
		c.Volumes = byName
	}
	return open(tb, c)
}

func (s *site) newClient(tb testing.TB, http2 bool) *http.Client {
	tb.Helper()
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: s.roots, ServerName: "localhost"}, ForceAttemptHTTP2: http2, DisableCompression: true,
		WriteBufferSize: 64 << 10, ReadBufferSize: 64 << 10,
	}
	tb.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// answer is an answer that was read to its end.
type answer struct {
	status int
	header http.Header
	body   []byte
	// cut is the error with which the body ended.
	cut error
}

// ask sends a request with the token. Each pair of strings is a header; an empty value removes it.
func (s *site) ask(tb testing.TB, method, path string, header ...string) answer {
	tb.Helper()
	return askWith(tb, s.client, method, s.url+path, header...)
}

func askWith(tb testing.TB, client *http.Client, method, url string, header ...string) answer {
	tb.Helper()
	r, err := http.NewRequestWithContext(tb.Context(), method, url, http.NoBody)
	if err != nil {
		tb.Fatal(err)
	}
	r.Header.Set(server.TokenHeader, token)
	for i := 0; i < len(header); i += 2 {
		r.Header.Del(header[i])
		if header[i+1] != "" {
			r.Header.Set(header[i], header[i+1])
		}
	}
	response, err := client.Do(r)
	if err != nil {
		tb.Fatalf("%s %s: %v", method, url, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return answer{status: response.StatusCode, header: response.Header, body: body, cut: err}
}
