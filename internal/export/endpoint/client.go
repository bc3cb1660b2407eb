// Package endpoint reads the endpoints of a backup in pull mode over HTTPS: the maps of its volumes, their data, and
// streams of whole volumes. docs/api.md has the requests and their answers. It knows no Kubernetes: a caller gives URLs,
// authorities, a token and, if it wants, a way to dial.
//
// What fails because the other side does not answer is repeated, with growing pauses, until nothing has come for the
// client's patience. A stream that was cut goes on with the first byte that its caller does not have. All requests for a
// volume name the same point in time, so that an answer never mixes two.
//
// What a server sends is hostile input. A map that contradicts itself, leaves out what it cannot leave out, or does not end
// is Corrupt; redirections and compressed answers are refused. Memory is bounded by constants: while a page of a map is
// read, its text of at most 16 MiB and half a million regions of 24 bytes; for each Disk, two sets of at most a million
// extents of 16 bytes; and a buffer for each of at most 64 connections. A Disk has no buffers of its own: bytes go to where
// its caller wants them.
//
// What several goroutines read of a Disk at once is requested at once, each piece over a connection of its own, which
// stays open for the next piece. The workers of a repository ask for eight pieces of 1 MiB, which is all that the
// endpoints of KubeVirt 1.8 can give: their processors are the limit then, and larger requests, more of them, or reading
// the gap between two pieces to save a request make nothing faster (docs/testing.md has the figures).
//
// Endpoints without entity tags, which are those of KubeVirt 1.8, are held to the certificate that answered first: an export
// has one of its own there. Behind a proxy, which has one for all, a backup that was made again under the same name is not
// noticed.
//
// Errors have the classes of errclass: Transient if nobody answered in time, Denied for a wrong token or certificate,
// NotFound for an unknown volume, Expired when the backup has ended, Conflict for another point in time, Corrupt if a
// checksum does not hold, Exhausted for a full scratch space. The token stands in no error. A Client is safe for
// concurrent use.
package endpoint

import (
	"cmp"
	"context"
	crand "crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export/podspec"
)

const (
	defaultPatience = 5 * time.Minute
	// defaultStall is longer than the pause between two keepalive frames of a stream, and than a map may take.
	defaultStall        = time.Minute
	defaultFirstPause   = 100 * time.Millisecond
	defaultLongestPause = 10 * time.Second
	handshakeTimeout    = 30 * time.Second
	// readBufferBytes is the size of the buffer of a connection. What is in it when a connection is cut is not lost.
	readBufferBytes = 64 << 10
	// idleConnections is how many connections wait for the next request to a host.
	idleConnections = 32
	idleTime        = 30 * time.Second // less than the server's
	// maxConnections is how many connections to a host are open at once: a server serves no more requests.
	maxConnections = 64
	// maxHeaderBytes bounds the header of an answer.
	maxHeaderBytes = 64 << 10
)

// Options say how to reach endpoints. Authorities and Token are required.
type Options struct {
	// Authorities returns the certificates, in PEM, of those who may have signed the server's. It is called for each
	// connection, because authorities rotate.
	Authorities func(context.Context) ([]byte, error)
	// Token returns the token that the server wants. It is called for each request. Space around it is not sent: servers ignore it in their
	// Secret, and no header can have the end of a line.
	Token func(context.Context) (string, error)
	// Dial connects to host:port of a URL. The certificate is held against the host of the URL in any case. Nil: as
	// net.Dialer does. An error without a class is Transient.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Patience is how long to repeat what fails while nothing comes. 0: 5 minutes.
	Patience time.Duration
	// Stall is how long a connection may be silent before it is given up. 0: a minute.
	Stall time.Duration
	// FirstPause and LongestPause bound the pauses between attempts. 0: 100 milliseconds, 10 seconds.
	FirstPause, LongestPause time.Duration
	// Retrying is called before each pause with the reason. It may be nil.
	Retrying func(reason error)
	// Clock is for pauses and patience; nil: the real one.
	Clock clock.Clock
	// Random varies the pauses; nil: other pauses in each client. The client alone uses it.
	Random rand.Source
}

// Client reads endpoints.
type Client struct {
	o    Options
	http *http.Client

	mu     sync.Mutex
	random *rand.Rand
}

// New returns a client. Close it.
func New(o Options) *Client {
	o.Patience = cmp.Or(o.Patience, defaultPatience)
	o.Stall = cmp.Or(o.Stall, defaultStall)
	o.FirstPause = cmp.Or(o.FirstPause, defaultFirstPause)
	o.LongestPause = cmp.Or(o.LongestPause, defaultLongestPause)
	if o.Dial == nil {
		o.Dial = (&net.Dialer{Timeout: handshakeTimeout}).DialContext
	}
	if o.Retrying == nil {
		o.Retrying = func(error) {}
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Random == nil {
		var seed [32]byte
		crand.Read(seed[:]) //nolint:errcheck // it never fails
		o.Random = rand.NewChaCha8(seed)
	}
	c := &Client{o: o, random: rand.New(o.Random)}
	c.http = &http.Client{
		Transport: &http.Transport{
			// A connection for each request at a time: one that breaks takes no other request with it, and none waits for another
			// one's window, as over HTTP/2.
			DialTLSContext: c.dialTLS, DisableCompression: true, ReadBufferSize: readBufferBytes,
			MaxIdleConnsPerHost: idleConnections, IdleConnTimeout: idleTime, MaxConnsPerHost: maxConnections,
			// A server that sends its header byte by byte is silent, too.
			ResponseHeaderTimeout: o.Stall, MaxResponseHeaderBytes: maxHeaderBytes,
		},
		// A redirection would take the token elsewhere.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c
}

// Close closes the connections that no request uses.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// dialTLS connects, and verifies the server.
func (c *Client) dialTLS(ctx context.Context, network, address string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, errclass.Errorf(errclass.Invalid, "%w", err)
	}
	certificates, err := c.o.Authorities(ctx)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(certificates) {
		return nil, errclass.Errorf(errclass.Invalid, "there is no certificate among the authorities of the endpoints")
	}
	plain, err := c.o.Dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	conn := tls.Client(&watchedConn{Conn: plain, stall: c.o.Stall}, &tls.Config{RootCAs: roots, ServerName: host, MinVersion: tls.VersionTLS12})
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	if err := conn.HandshakeContext(ctx); err != nil {
		plain.Close() //nolint:errcheck // nothing was sent
		return nil, err
	}
	return conn, nil
}

// watchedConn fails when nothing can be read or written for too long.
type watchedConn struct {
	net.Conn
	stall time.Duration
}

func (c *watchedConn) Read(p []byte) (int, error) {
	if err := c.SetReadDeadline(time.Now().Add(c.stall)); err != nil { //nolint:forbidigo // deadlines of connections are in real time
		return 0, err
	}
	return c.Conn.Read(p)
}

func (c *watchedConn) Write(p []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(c.stall)); err != nil { //nolint:forbidigo // as above
		return 0, err
	}
	return c.Conn.Write(p)
}

// get makes one attempt at a request. It returns an answer with status 200 or 206. header may be nil.
func (c *Client) get(ctx context.Context, address *url.URL, header http.Header) (*http.Response, error) {
	token, err := c.o.Token(ctx)
	if err != nil {
		return nil, err
	}
	token = strings.TrimSpace(token)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address.String(), http.NoBody)
	if err != nil {
		return nil, errclass.Errorf(errclass.Invalid, "%w", err)
	}
	for name, values := range header {
		request.Header[name] = values
	}
	request.Header.Set(podspec.TokenHeader, token)
	response, err := c.http.Do(request)
	if err != nil {
		return nil, classifyFailure(ctx, err)
	}
	if response.StatusCode != http.StatusOK && response.StatusCode != http.StatusPartialContent {
		return nil, refusal(response, token)
	}
	if encoding := response.Header.Get("Content-Encoding"); encoding != "" && encoding != "identity" {
		response.Body.Close() //nolint:errcheck // it was not read
		return nil, errclass.Errorf(errclass.Invalid, "the endpoint sends its answer as %.40q, which nobody has asked for", encoding)
	}
	return response, nil
}

// serverOf returns a hash of the certificate of the server that has answered.
func serverOf(response *http.Response) string {
	if response.TLS == nil || len(response.TLS.PeerCertificates) == 0 {
		return ""
	}
	sum := sha256.Sum256(response.TLS.PeerCertificates[0].Raw)
	return hex.EncodeToString(sum[:])
}

// checkServer is for endpoints without entity tags, such as those of KubeVirt 1.8. An export has a certificate of its own there, so that
// one with another certificate may be of another backup, at the same address.
func checkServer(response *http.Response, want string) error {
	if want == "" || want == serverOf(response) {
		return nil
	}
	return errclass.Errorf(ErrOtherPoint, "the endpoints have no entity tags and were replaced: they may be those of another point in time")
}

// parseURL parses the URL of an endpoint.
func parseURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil {
		return nil, errclass.Errorf(errclass.Invalid, "endpoint %q is no https URL", text)
	}
	return u, nil
}

// StreamURL returns the URL of the stream of a volume, from that of its data.
func StreamURL(data string) (string, error) {
	u, err := parseURL(data)
	if err != nil {
		return "", err
	}
	path, found := strings.CutSuffix(u.EscapedPath(), "/data")
	if !found {
		return "", errclass.Errorf(errclass.Invalid, "endpoint %q is not that of a volume's data", data)
	}
	if u.Path, err = url.PathUnescape(path + "/stream"); err != nil {
		return "", errclass.Errorf(errclass.Invalid, "endpoint %q: %w", data, err)
	}
	u.RawPath = path + "/stream"
	return u.String(), nil
}
