// Package authority makes certificates for tests, for both sides of a connection to this machine, in memory and in files.
package authority

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Authority signs the certificates of one test.
type Authority struct {
	// Server and Client are the configurations of the two sides. Each side demands the other's certificate.
	Server, Client *tls.Config

	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// New makes an authority and a certificate for each side.
func New(tb testing.TB) *Authority {
	tb.Helper()
	a := &Authority{key: newKey(tb)}
	a.cert = sign(tb, &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}, nil, a.key, a.key)
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	a.Server = &tls.Config{Certificates: []tls.Certificate{a.issue(tb, "server")}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS12}
	a.Client = &tls.Config{Certificates: []tls.Certificate{a.issue(tb, "client")}, RootCAs: pool, ServerName: "localhost", MinVersion: tls.VersionTLS12}
	return a
}

func newKey(tb testing.TB) *ecdsa.PrivateKey {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	return key
}

func sign(tb testing.TB, c, parent *x509.Certificate, key, parentKey *ecdsa.PrivateKey) *x509.Certificate {
	tb.Helper()
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	if parent == nil {
		parent = c
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, parentKey)
	if err != nil {
		tb.Fatal(err)
	}
	signed, err := x509.ParseCertificate(der)
	if err != nil {
		tb.Fatal(err)
	}
	return signed
}

func (a *Authority) issue(tb testing.TB, name string) tls.Certificate {
	tb.Helper()
	return a.Issue(tb, name, "localhost")
}

// Issue makes another certificate, for these hosts and for this machine's address.
func (a *Authority) Issue(tb testing.TB, name string, hosts ...string) tls.Certificate {
	tb.Helper()
	key := newKey(tb)
	c := sign(tb, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, DNSNames: hosts,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, a.cert, key, a.key)
	return tls.Certificate{Certificate: [][]byte{c.Raw}, PrivateKey: key, Leaf: c}
}

// Files writes the files that QEMU, nbdkit and libnbd expect into a directory and returns it: ca-cert.pem,
// server-cert.pem, server-key.pem, client-cert.pem and client-key.pem.
func (a *Authority) Files(tb testing.TB) string {
	tb.Helper()
	dir := tb.TempDir()
	put := func(name, kind string, der []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			tb.Fatal(err)
		}
	}
	put("ca-cert.pem", "CERTIFICATE", a.cert.Raw)
	for name, config := range map[string]*tls.Config{"server": a.Server, "client": a.Client} {
		c := config.Certificates[0]
		key, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
		if err != nil {
			tb.Fatal(err)
		}
		put(name+"-cert.pem", "CERTIFICATE", c.Certificate[0])
		put(name+"-key.pem", "PRIVATE KEY", key)
	}
	return dir
}

// ServiceFiles writes the certificate of a service that is client and server in one into a directory, in files named as
// in a Secret, and returns the directory: tls.crt, tls.key and ca.crt.
func (a *Authority) ServiceFiles(tb testing.TB, host string) string {
	tb.Helper()
	dir, c := tb.TempDir(), a.Issue(tb, host, host)
	key, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		tb.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{
		"ca.crt":  {Type: "CERTIFICATE", Bytes: a.cert.Raw},
		"tls.crt": {Type: "CERTIFICATE", Bytes: c.Certificate[0]},
		"tls.key": {Type: "PRIVATE KEY", Bytes: key},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			tb.Fatal(err)
		}
	}
	return dir
}
