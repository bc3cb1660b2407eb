package httpserver

import (
	"crypto/tls"
	"fmt"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// certificateAge is how long a certificate is used before its files are read again.
const certificateAge = 30 * time.Second

// CertificateFiles is a certificate and its key in two files in PEM, which are replaced while they are in use. It is safe
// for concurrent use.
type CertificateFiles struct {
	certificate, key string
	clock            clock.PassiveClock

	mu     sync.Mutex
	loaded *tls.Certificate
	at     time.Time
}

// NewCertificateFiles returns the certificate in these files. They need not be there yet.
func NewCertificateFiles(certificate, key string, c clock.PassiveClock) *CertificateFiles {
	return &CertificateFiles{certificate: certificate, key: key, clock: c}
}

// Get implements tls.Config.GetCertificate. A certificate that cannot be read any more, as in the middle of its replacement,
// is used on.
func (c *CertificateFiles) Get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.loaded != nil && c.clock.Since(c.at) < certificateAge {
		return c.loaded, nil
	}
	pair, err := tls.LoadX509KeyPair(c.certificate, c.key)
	switch {
	case err == nil:
		c.loaded, c.at = &pair, c.clock.Now()
	case c.loaded == nil:
		return nil, fmt.Errorf("read the certificate: %w", err)
	}
	return c.loaded, nil
}
