// Package pki creates a box's certificates and keys, and keeps them in files across restarts.
//
// It replaces a file that is missing, damaged, close to its expiry, from another authority, or for other names, and
// leaves all others alone. If the authority is lost, it replaces every certificate.
package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/varvebackup/varve/box/internal/atomicfile"
)

const (
	authorityLife = 10 * 365 * 24 * time.Hour
	leafLife      = 365 * 24 * time.Hour
	renewBefore   = 30 * 24 * time.Hour
)

// Leaf describes a certificate: its subject (CommonName and Organizations are a Kubernetes user and its groups) and,
// for a server, the names and addresses that it serves.
type Leaf struct {
	CommonName    string
	Organizations []string
	DNSNames      []string
	IPs           []net.IP
}

// Pair is a certificate and its key, as files and in memory.
type Pair struct {
	CertFile, KeyFile string
	cert              *x509.Certificate
	key               crypto.Signer
}

// Authority signs leaves. Its files are NAME.crt and NAME.key in the directory.
type Authority struct {
	Pair
	dir string
	now time.Time
}

// CertPEM returns the PEM bytes of the certificate file.
func (p Pair) CertPEM() ([]byte, error) { return os.ReadFile(p.CertFile) }

// KeyPEM returns the PEM bytes of the key file.
func (p Pair) KeyPEM() ([]byte, error) { return os.ReadFile(p.KeyFile) }

// Open loads the authority name from dir, or creates it. now decides what is close to its expiry.
func Open(dir, name string, now time.Time) (*Authority, error) {
	a := &Authority{Pair: pairFiles(dir, name), dir: dir, now: now}
	if a.loadPair() == nil && a.cert.IsCA && a.isFresh(now) {
		return a, nil
	}
	tmpl := certificateTemplate(pkix.Name{CommonName: "varve-box " + name}, now, authorityLife)
	tmpl.IsCA = true
	tmpl.BasicConstraintsValid = true
	tmpl.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	if err := a.makePair(tmpl, nil); err != nil {
		return nil, fmt.Errorf("make the authority %s: %w", name, err)
	}
	return a, nil
}

// Ensure loads the leaf's files NAME.crt and NAME.key, or creates them.
func (a *Authority) Ensure(name string, leaf Leaf) (Pair, error) {
	p := pairFiles(a.dir, name)
	if p.loadPair() == nil && p.isFresh(a.now) && p.cert.CheckSignatureFrom(a.cert) == nil && leaf.matchesCertificate(p.cert) {
		return p, nil
	}
	tmpl := certificateTemplate(pkix.Name{CommonName: leaf.CommonName, Organization: leaf.Organizations}, a.now, leafLife)
	tmpl.KeyUsage = x509.KeyUsageDigitalSignature
	tmpl.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
	tmpl.DNSNames, tmpl.IPAddresses = leaf.DNSNames, leaf.IPs
	if err := p.makePair(tmpl, a); err != nil {
		return Pair{}, fmt.Errorf("make the certificate %s: %w", name, err)
	}
	return p, nil
}

// EnsureKey loads the key NAME.key (for signing service account tokens), or creates it, and writes its public key NAME.pub.
func EnsureKey(dir, name string) (keyFile, pubFile string, err error) {
	keyFile, pubFile = filepath.Join(dir, name+".key"), filepath.Join(dir, name+".pub")
	key, err := readKey(keyFile)
	if err != nil {
		if key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
			return "", "", fmt.Errorf("make the key %s: %w", name, err)
		}
		if err := writeKey(keyFile, key); err != nil {
			return "", "", err
		}
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return "", "", fmt.Errorf("encode the public key %s: %w", name, err)
	}
	return keyFile, pubFile, atomicfile.Write(pubFile, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), 0o644)
}

func pairFiles(dir, name string) Pair {
	return Pair{CertFile: filepath.Join(dir, name+".crt"), KeyFile: filepath.Join(dir, name+".key")}
}

func (p *Pair) loadPair() error {
	data, err := os.ReadFile(p.CertFile)
	if err != nil {
		return err
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return fmt.Errorf("%s holds no PEM block", p.CertFile)
	}
	if p.cert, err = x509.ParseCertificate(block.Bytes); err != nil {
		return err
	}
	if p.key, err = readKey(p.KeyFile); err != nil {
		return err
	}
	if pub, ok := p.cert.PublicKey.(*ecdsa.PublicKey); !ok || !pub.Equal(p.key.Public()) {
		return fmt.Errorf("%s does not belong to %s", p.KeyFile, p.CertFile)
	}
	return nil
}

func (p *Pair) isFresh(now time.Time) bool {
	return now.After(p.cert.NotBefore) && now.Add(renewBefore).Before(p.cert.NotAfter)
}

// makePair writes the key before the certificate, so a new certificate never exists without its key. load detects any other mismatch.
func (p *Pair) makePair(tmpl *x509.Certificate, signer *Authority) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return err
	}
	tmpl.SerialNumber = serial
	parent, signKey := tmpl, crypto.Signer(key)
	if signer != nil {
		parent, signKey = signer.cert, signer.key
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, key.Public(), signKey)
	if err != nil {
		return err
	}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := errors.Join(writeKey(p.KeyFile, key), atomicfile.Write(p.CertFile, cert, 0o644)); err != nil {
		return err
	}
	return p.loadPair()
}

func (l Leaf) matchesCertificate(c *x509.Certificate) bool {
	return c.Subject.CommonName == l.CommonName &&
		slices.Equal(c.Subject.Organization, l.Organizations) &&
		slices.Equal(c.DNSNames, l.DNSNames) &&
		slices.EqualFunc(c.IPAddresses, l.IPs, net.IP.Equal)
}

func certificateTemplate(name pkix.Name, now time.Time, life time.Duration) *x509.Certificate {
	return &x509.Certificate{Subject: name, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(life)}
}

func readKey(path string) (*ecdsa.PrivateKey, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, fmt.Errorf("%s holds no PEM block", path)
	}
	return x509.ParseECPrivateKey(block.Bytes)
}

func writeKey(path string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return fmt.Errorf("encode the key %s: %w", path, err)
	}
	return atomicfile.Write(path, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600)
}
