package tunnel

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/export/exporttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testTimeout is far beyond what anything here takes.
const testTimeout = 2 * time.Minute

const (
	testUID  = "5f0c7f1e-8d0f-4c5e-9d55-4b1b6a0f2a11"
	testName = "export.example"
)

var testKey = []byte("the key of the installation")

func testContext(tb testing.TB) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), testTimeout)
	tb.Cleanup(cancel)
	return ctx
}

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

var serial atomic.Int64

func newAuthority(tb testing.TB) *authority {
	tb.Helper()
	a := &authority{}
	template := &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, Subject: pkix.Name{CommonName: "test CA"}}
	a.cert, a.key = a.sign(tb, template)
	return a
}

// sign returns a certificate for a new key. An authority without a certificate signs its own.
func (a *authority) sign(tb testing.TB, template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	template.SerialNumber = big.NewInt(serial.Add(1))
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		tb.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		tb.Fatal(err)
	}
	return cert, key
}

// serverConfig returns a configuration with a certificate for name.
func (a *authority) serverConfig(tb testing.TB, name string) *tls.Config {
	tb.Helper()
	cert, key := a.sign(tb, &x509.Certificate{DNSNames: []string{name}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	certificate := &tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key}
	return &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return certificate, nil }}
}

func (a *authority) pool() (*x509.CertPool, error) {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p, nil
}

func testToken() ([]byte, error) { return Token(testKey, testUID), nil }

// rig is a server and what a launcher needs to reach it.
type rig struct {
	server  *Server
	ca      *authority
	address string
	stop    context.CancelFunc
	served  chan error
}

// newServer returns a server that does not serve yet.
func newServer(tb testing.TB, ca *authority) *Server {
	tb.Helper()
	return &Server{TLS: ca.serverConfig(tb, testName), BackupUID: testUID, Token: testToken}
}

// newRig serves with what change makes of the defaults.
func newRig(tb testing.TB, change func(*Server)) *rig {
	tb.Helper()
	ca := newAuthority(tb)
	s := newServer(tb, ca)
	if change != nil {
		change(s)
	}
	r := &rig{server: s, ca: ca}
	r.listen(tb, "127.0.0.1:0")
	tb.Cleanup(func() {
		r.end(tb)
		if used := r.server.buffers.used.Load(); used != 0 {
			tb.Errorf("%d bytes of buffers were lost", used)
		}
		if lent := r.server.shared.Load(); lent != 0 {
			tb.Errorf("%d bytes of window were lost", lent)
		}
		if places := len(r.server.places); places != 0 {
			tb.Errorf("%d places of requests were lost", places)
		}
	})
	return r
}

// listen begins to serve, until end.
func (r *rig) listen(tb testing.TB, address string) {
	tb.Helper()
	l, err := new(net.ListenConfig).Listen(tb.Context(), "tcp", address)
	if err != nil {
		tb.Fatal(err)
	}
	r.address = l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	r.stop, r.served = cancel, make(chan error, 1)
	go func() { r.served <- r.server.Serve(ctx, l) }()
}

func (r *rig) end(tb testing.TB) {
	tb.Helper()
	r.stop()
	if err := <-r.served; err != nil {
		tb.Errorf("Serve: %v", err)
	}
	r.served <- nil
}

func (r *rig) config() Config {
	return Config{
		Address: r.address, ServerName: testName, CA: r.ca.pool, BackupUID: testUID, Token: testToken,
		MinBackoff: time.Millisecond, MaxBackoff: 20 * time.Millisecond,
	}
}

// launch runs a launcher until the test ends, or until what it returns is called.
func launch(tb testing.TB, cfg Config, volumes ...export.Volume) (stop func()) {
	tb.Helper()
	named := exporttest.Volumes{}
	var infos []export.Info
	for _, v := range volumes {
		named[v.Info().Name] = v
		infos = append(infos, v.Info())
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, cfg, named, infos) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				tb.Errorf("Run: %v", err)
			}
		})
	}
	tb.Cleanup(stop)
	return stop
}

// open returns a volume of the far end, once the launcher is connected.
func (r *rig) open(tb testing.TB, name string) export.Volume {
	tb.Helper()
	if err := r.server.Wait(testContext(tb)); err != nil {
		tb.Fatal(err)
	}
	v, err := r.server.Open(testContext(tb), name)
	if err != nil {
		tb.Fatal(err)
	}
	return v
}
