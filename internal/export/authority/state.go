package authority

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	day = 24 * time.Hour
	// validity is how long an authority is valid.
	validity = 90 * day
	// publishBefore is how long before its end an authority gets a successor that clients can begin to trust.
	publishBefore = 30 * day
	// switchBefore is how long before its end an authority leaves signing to its successor.
	switchBefore = 15 * day
	// publishedAtLeast is how long clients can trust a successor before it signs, even after an outage.
	publishedAtLeast = day
	// urgentBefore is how long before the authority's end the successor signs whether clients know it or not: what an
	// authority signs must end before it does.
	urgentBefore = 2 * serverValidity
	// backdate covers clocks that are behind this one.
	backdate = time.Hour
)

// Keys of the Secret. The present authority has the usual keys of a Secret of type kubernetes.io/tls.
const (
	nextCertificateKey = "next.crt"
	nextPrivateKey     = "next.key"
)

// AuthoritiesKey is the key of a Secret's authorities, as cert-manager has it.
const AuthoritiesKey = "ca.crt"

// signer is an authority with its key.
type signer struct {
	certificate *x509.Certificate
	key         crypto.Signer
}

// state is what the Secret holds.
type state struct {
	// present signs.
	present *signer
	// next is trusted and does not sign yet. Nil most of the time.
	next *signer
	// retired are trusted and do not sign any more.
	retired []*x509.Certificate
}

// rotate returns the state that s must become at now, and whether it differs from s.
func rotate(s state, now time.Time) (state, bool, error) {
	changed := false
	if n := len(s.retired); n > 0 {
		kept := s.retired[:0:0]
		for _, c := range s.retired {
			if now.Before(c.NotAfter) {
				kept = append(kept, c)
			}
		}
		s.retired, changed = kept, len(kept) < n
	}
	if s.next != nil && hasEnded(s.next, now) {
		s.next, changed = nil, true
	}
	if s.present != nil && hasEnded(s.present, now) {
		s.present, changed = nil, true
	}
	if s.next == nil && (s.present == nil || !now.Before(s.present.certificate.NotAfter.Add(-publishBefore))) {
		made, err := newSigner(now)
		if err != nil {
			return state{}, false, err
		}
		s.next, changed = made, true
	}
	if s.next != nil && mustSwitch(s, now) {
		if s.present != nil {
			s.retired = append(s.retired[:len(s.retired):len(s.retired)], s.present.certificate)
		}
		s.present, s.next, changed = s.next, nil, true
	}
	return s, changed, nil
}

// mustSwitch reports whether the next authority signs from now on.
func mustSwitch(s state, now time.Time) bool {
	if s.present == nil {
		return true
	}
	end := s.present.certificate.NotAfter
	published := s.next.certificate.NotBefore.Add(backdate)
	return !now.Before(end.Add(-urgentBefore)) || (!now.Before(end.Add(-switchBefore)) && !now.Before(published.Add(publishedAtLeast)))
}

func hasEnded(s *signer, now time.Time) bool { return !now.Before(s.certificate.NotAfter) }

// newSigner makes an authority that is valid from now on.
func newSigner(now time.Time) (*signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the key of an authority: %w", err)
	}
	serial := newSerial()
	template := &x509.Certificate{
		SerialNumber: serial,
		// Each has a name of its own, because some clients look for the signer by name alone.
		Subject:               pkix.Name{CommonName: fmt.Sprintf("varve export authority %x", serial)},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(validity),
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("sign an authority: %w", err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parse an authority: %w", err)
	}
	return &signer{certificate: certificate, key: key}, nil
}

func newSerial() *big.Int {
	serial := make([]byte, 16)
	_, _ = rand.Read(serial) // never fails: crypto/rand ends the program instead
	return new(big.Int).SetBytes(serial)
}

// decodeState reads a Secret. What cannot be read is absent: rotate makes up for it. An authority whose key is missing
// still verifies what it has signed, so it counts as retired.
func decodeState(data map[string][]byte) state {
	s := state{
		present: decodeSigner(data[corev1.TLSCertKey], data[corev1.TLSPrivateKeyKey]),
		next:    decodeSigner(data[nextCertificateKey], data[nextPrivateKey]),
	}
	for _, text := range [][]byte{data[AuthoritiesKey], data[corev1.TLSCertKey], data[nextCertificateKey]} {
		for _, c := range decodeCertificates(text) {
			if c.IsCA && !s.trusts(c) {
				s.retired = append(s.retired, c)
			}
		}
	}
	return s
}

func decodeSigner(certificate, key []byte) *signer {
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil || !pair.Leaf.IsCA {
		return nil
	}
	private, ok := pair.PrivateKey.(crypto.Signer)
	if !ok {
		return nil
	}
	return &signer{certificate: pair.Leaf, key: private}
}

func decodeCertificates(text []byte) []*x509.Certificate {
	var all []*x509.Certificate
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			return all
		}
		if c, err := x509.ParseCertificate(block.Bytes); err == nil {
			all = append(all, c)
		}
	}
}

// trusts reports whether the list of authorities has c.
func (s state) trusts(c *x509.Certificate) bool {
	for _, known := range s.authorities() {
		if known.Equal(c) {
			return true
		}
	}
	return false
}

// authorities lists every authority to trust: the present one, the next one, then those that sign no more.
func (s state) authorities() []*x509.Certificate {
	var all []*x509.Certificate
	for _, one := range []*signer{s.present, s.next} {
		if one != nil {
			all = append(all, one.certificate)
		}
	}
	return append(all, s.retired...)
}

// encode returns the Secret's data. s has a present authority.
func (s state) encode() (map[string][]byte, error) {
	data := map[string][]byte{AuthoritiesKey: encodeCertificates(s.authorities())}
	for _, one := range []struct {
		signer           *signer
		certificate, key string
	}{{s.present, corev1.TLSCertKey, corev1.TLSPrivateKeyKey}, {s.next, nextCertificateKey, nextPrivateKey}} {
		if one.signer == nil {
			continue
		}
		key, err := encodeKey(one.signer.key)
		if err != nil {
			return nil, err
		}
		data[one.certificate], data[one.key] = encodeCertificates([]*x509.Certificate{one.signer.certificate}), key
	}
	return data, nil
}

func encodeCertificates(all []*x509.Certificate) []byte {
	var text bytes.Buffer
	for _, c := range all {
		text.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}))
	}
	return text.Bytes()
}

func encodeKey(key crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode a key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}
