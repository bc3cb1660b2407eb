package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
)

const (
	// idlePerExport is how many connections to an export stay open without a request.
	idlePerExport = 8
	// idleTime is shorter than an export keeps them, so that a request does not meet a connection that is being closed.
	idleTime = 30 * time.Second
	// maxAnswerHeader is how long the header of an export's answer is at most, in bytes.
	maxAnswerHeader = 16 << 10
	// keepAlive finds out within about a minute that an export's node is gone.
	keepAliveIdle, keepAliveInterval, keepAliveCount = 15 * time.Second, 15 * time.Second, 3
)

// Dial connects to an address of a name and a port.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// newTransport returns what sends requests to exports. Each of its connections belongs to the export that its host's
// certificate names. It knows no proxies, follows no redirects and passes bodies on as they are.
func newTransport(dial Dial, authorities *authorityFile, limits Limits) *http.Transport {
	if dial == nil {
		dial = (&net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: keepAliveIdle, Interval: keepAliveInterval, Count: keepAliveCount}}).DialContext
	}
	return &http.Transport{
		DialTLSContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, limits.DialTime)
			defer cancel()
			return dialExport(ctx, dial, authorities, network, address)
		},
		DisableCompression:     true,
		MaxIdleConns:           limits.Requests,
		MaxIdleConnsPerHost:    idlePerExport,
		IdleConnTimeout:        idleTime,
		ResponseHeaderTimeout:  limits.AnswerTime,
		MaxResponseHeaderBytes: maxAnswerHeader,
		ReadBufferSize:         bufferBytes,
	}
}

// dialExport connects to an export and verifies its certificate. Nothing is sent before.
func dialExport(ctx context.Context, dial Dial, authorities *authorityFile, network, address string) (net.Conn, error) {
	roots, err := authorities.get()
	if err != nil {
		return nil, err
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	plain, err := dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	secure := tls.Client(plain, &tls.Config{RootCAs: roots, ServerName: host, MinVersion: tls.VersionTLS13})
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("verify %s: %w", host, err), plain.Close())
	}
	return secure, nil
}

// statusOf returns the status and the words for an export that cannot be reached.
func statusOf(err error) (status int, words string) {
	var name *net.DNSError
	var certificate *tls.CertificateVerificationError
	switch {
	case errors.As(err, &name) && name.IsNotFound:
		return http.StatusNotFound, "there is no such export, or it is not served yet"
	case errors.As(err, &certificate):
		return http.StatusBadGateway, "what answers in the export's place has no certificate of the export"
	default:
		return http.StatusServiceUnavailable, "the export cannot be reached now"
	}
}
