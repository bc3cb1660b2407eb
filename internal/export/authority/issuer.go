package authority

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	// serverValidity is how long a server's certificate is valid.
	serverValidity = day
	// renewBefore is how long before its end a server's certificate is renewed. It takes a kubelet a minute or two to
	// bring the new one to the pod.
	renewBefore = serverValidity / 3
)

// Issuer signs with the authority that was present when it was made. It is for use right away, not to be kept.
type Issuer struct {
	state state
	now   time.Time
}

// Certificate is a server's certificate, or a peer's, with its key, both in PEM.
type Certificate struct{ Certificate, Key []byte }

// Authorities returns the certificates of the authorities to trust, in PEM. Write them where clients read them before
// you use a certificate of this issuer.
func (i *Issuer) Authorities() []byte { return encodeCertificates(i.state.authorities()) }

// Issue makes a key and a server's certificate for hosts, which are DNS names and IP addresses. There is
// at least one.
func (i *Issuer) Issue(hosts []string) (Certificate, error) {
	return i.issue(hosts, x509.ExtKeyUsageServerAuth)
}

// IssuePeer is Issue for peers of each other: the certificate is a server's and a client's.
func (i *Issuer) IssuePeer(hosts []string) (Certificate, error) {
	return i.issue(hosts, x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth)
}

func (i *Issuer) issue(hosts []string, usages ...x509.ExtKeyUsage) (Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Certificate{}, fmt.Errorf("make the key of a certificate: %w", err)
	}
	authority := i.state.present
	template := &x509.Certificate{
		SerialNumber: newSerial(),
		NotBefore:    i.now.Add(-backdate),
		NotAfter:     i.now.Add(serverValidity), // before the authority's end: see urgentBefore
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  usages,
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
			continue
		}
		template.DNSNames = append(template.DNSNames, host)
	}
	if len(hosts[0]) <= maxCommonName {
		template.Subject = pkix.Name{CommonName: hosts[0]}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, authority.certificate, key.Public(), authority.key)
	if err != nil {
		return Certificate{}, fmt.Errorf("sign the certificate of %s: %w", hosts[0], err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return Certificate{}, fmt.Errorf("parse the certificate of %s: %w", hosts[0], err)
	}
	private, err := encodeKey(key)
	if err != nil {
		return Certificate{}, err
	}
	return Certificate{Certificate: encodeCertificates([]*x509.Certificate{certificate}), Key: private}, nil
}

// SecretData returns what a Secret of type kubernetes.io/tls has of a certificate, with the authorities under
// AuthoritiesKey.
func (i *Issuer) SecretData(c Certificate) map[string][]byte {
	return map[string][]byte{
		corev1.TLSCertKey: c.Certificate, corev1.TLSPrivateKeyKey: c.Key, AuthoritiesKey: i.Authorities(),
	}
}

// TimeLeft returns how long it is until the certificate of a Secret, as SecretData has it, is due for renewal. It is 0
// if the certificate is due, cannot be used for hosts, or comes with other authorities.
func (i *Issuer) TimeLeft(data map[string][]byte, hosts []string) time.Duration {
	if !bytes.Equal(data[AuthoritiesKey], i.Authorities()) {
		return 0
	}
	due, err := i.RenewalTime(Certificate{Certificate: data[corev1.TLSCertKey], Key: data[corev1.TLSPrivateKeyKey]}, hosts)
	if err != nil {
		return 0
	}
	return max(due.Sub(i.now), 0)
}

// maxCommonName is the longest common name that is valid (RFC 5280, appendix A.1, ub-common-name).
const maxCommonName = 64

// RenewalTime returns when a certificate of Issue is due for renewal. The error says why the certificate cannot be used
// any more: it is not for hosts, it has ended, or no authority of Authorities has signed it.
func (i *Issuer) RenewalTime(c Certificate, hosts []string) (time.Time, error) {
	pair, err := tls.X509KeyPair(c.Certificate, c.Key)
	if err != nil {
		return time.Time{}, fmt.Errorf("parse the certificate: %w", err)
	}
	roots := x509.NewCertPool()
	for _, a := range i.state.authorities() {
		roots.AddCert(a)
	}
	if len(hosts) == 0 {
		return time.Time{}, errors.New("no host to verify the certificate for")
	}
	for _, host := range hosts {
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{DNSName: host, Roots: roots, CurrentTime: i.now}); err != nil {
			return time.Time{}, fmt.Errorf("verify the certificate for %s: %w", host, err)
		}
	}
	return pair.Leaf.NotAfter.Add(-renewBefore), nil
}
