package proxy

import (
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// authoritiesAge is how long authorities are used before their file is read again. They are published weeks before they
// sign anything.
const authoritiesAge = 30 * time.Second

var errNoAuthorities = errors.New("there are no authorities of exports")

// authorityFile is the file with the authorities of exports, in PEM, which is replaced while it is in use.
type authorityFile struct {
	path  string
	clock clock.PassiveClock

	mu     sync.Mutex
	loaded *x509.CertPool
	at     time.Time
}

// get returns the authorities. Those that cannot be read any more are used on.
func (a *authorityFile) get() (*x509.CertPool, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.loaded != nil && a.clock.Since(a.at) < authoritiesAge {
		return a.loaded, nil
	}
	text, err := os.ReadFile(a.path)
	pool := x509.NewCertPool()
	switch {
	case err == nil && pool.AppendCertsFromPEM(text):
		a.loaded, a.at = pool, a.clock.Now()
	case a.loaded == nil:
		return nil, fmt.Errorf("%w: %s: %v", errNoAuthorities, a.path, err) //nolint:errorlint // one class is enough
	}
	return a.loaded, nil
}
