package s3

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// certify gives the server an authority and a certificate from it, in files in dir.
func (s *Server) certify(dir string) error {
	authority, certificate, key, err := makeCertificate()
	if err != nil {
		return err
	}
	s.Authority = authority
	if s.certificate, err = tls.X509KeyPair(certificate, key); err != nil {
		return err
	}
	certificateFile, keyFile := filepath.Join(dir, "certificate.pem"), filepath.Join(dir, "key.pem")
	s.arguments = append(s.arguments, "--cert", certificateFile, "--key", keyFile)
	return errors.Join(os.WriteFile(certificateFile, certificate, 0o644), os.WriteFile(keyFile, key, 0o600))
}

// makeCertificate makes an authority, and a certificate from it for loopback with its key, all in PEM.
func makeCertificate() (authority, certificate, key []byte, err error) {
	authorityKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, nil, err
	}
	serverKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, nil, err
	}
	// Client and server share one clock, and tests do not take days.
	from, to := time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	parent := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, NotBefore: from, NotAfter: to,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "test server"}, NotBefore: from, NotAfter: to,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	authorityBytes, err := x509.CreateCertificate(rand.Reader, parent, parent, authorityKey.Public(), authorityKey)
	if err != nil {
		return nil, nil, nil, err
	}
	leafBytes, err := x509.CreateCertificate(rand.Reader, leaf, parent, serverKey.Public(), authorityKey)
	if err != nil {
		return nil, nil, nil, err
	}
	keyBytes, err := x509.MarshalPKCS8PrivateKey(serverKey)
	if err != nil {
		return nil, nil, nil, err
	}
	block := func(kind string, bytes []byte) []byte {
		return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: bytes})
	}
	return block("CERTIFICATE", authorityBytes), block("CERTIFICATE", leafBytes), block("PRIVATE KEY", keyBytes), nil
}
