package admission

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"time"
)

const (
	// validity is how long an authority and its one certificate are valid.
	validity = 365 * 24 * time.Hour
	// renewBefore is how long before its expiry a certificate is renewed.
	renewBefore = validity / 3
	// backdate covers clocks that are behind this one.
	backdate = time.Hour
)

// bundle is a serving certificate with its key and the authorities to trust, all in PEM. The authority that signed
// it comes first, then the previous one.
type bundle struct {
	certificate, key, authorities []byte
}

// issueBundle makes an authority and one certificate for hosts. It does not keep the authority's key: a renewal makes
// another authority.
func issueBundle(now time.Time, hosts []string) (*bundle, error) {
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the authority's key: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the certificate's key: %w", err)
	}
	ca := certificateTemplate(now, "varve webhook authority")
	ca.IsCA, ca.BasicConstraintsValid, ca.KeyUsage = true, true, x509.KeyUsageCertSign
	leaf := certificateTemplate(now, hosts[0])
	leaf.KeyUsage, leaf.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			leaf.IPAddresses = append(leaf.IPAddresses, ip)
		} else {
			leaf.DNSNames = append(leaf.DNSNames, h)
		}
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)
	if err != nil {
		return nil, fmt.Errorf("sign the authority: %w", err)
	}
	leafDER, err := x509.CreateCertificate(rand.Reader, leaf, ca, key.Public(), caKey)
	if err != nil {
		return nil, fmt.Errorf("sign the certificate: %w", err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode the key: %w", err)
	}
	return &bundle{
		certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leafDER}),
		key:         pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}),
		authorities: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: caDER}),
	}, nil
}

func certificateTemplate(now time.Time, name string) *x509.Certificate {
	serial := make([]byte, 16)
	_, _ = rand.Read(serial) // never fails: crypto/rand ends the program instead
	return &x509.Certificate{
		SerialNumber: new(big.Int).SetBytes(serial),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    now.Add(-backdate),
		NotAfter:     now.Add(validity),
	}
}

// renewBundle issues a new bundle that also trusts the authority of old, if old has one.
func renewBundle(now time.Time, hosts []string, old *bundle) (*bundle, error) {
	b, err := issueBundle(now, hosts)
	if err != nil {
		return nil, err
	}
	if previous, _ := pem.Decode(old.authorities); previous != nil {
		b.authorities = append(b.authorities, pem.EncodeToMemory(previous)...)
	}
	return b, nil
}

// usableCertificate returns the bundle's certificate if it can be served at now.
func (b *bundle) usableCertificate(now time.Time, hosts []string) (*tls.Certificate, error) {
	pair, err := tls.X509KeyPair(b.certificate, b.key)
	if err != nil {
		return nil, fmt.Errorf("parse the certificate: %w", err)
	}
	leaf := pair.Leaf
	if due := leaf.NotAfter.Add(-renewBefore); !now.Before(due) {
		return nil, fmt.Errorf("the certificate ends on %s and is due for renewal", leaf.NotAfter)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(b.authorities) {
		return nil, errors.New("the certificate's authority is missing")
	}
	for _, h := range hosts {
		if _, err := leaf.Verify(x509.VerifyOptions{DNSName: h, Roots: roots, CurrentTime: now}); err != nil {
			return nil, fmt.Errorf("verify the certificate for %s: %w", h, err)
		}
	}
	return &pair, nil
}
