// Package server is the HTTPS side of an export pod: it serves the volumes of a backup to its clients. docs/api.md has
// the requests and their answers.
//
// Nothing but the readiness path is answered without the token, and no request can change anything. An error before the
// first byte of an answer is a status; a later one breaks the connection, so that no client takes a part for the whole.
// What clients can take of memory and of connections is bounded by Limits, and a client with the token is served
// however many there are without it. A request holds one chunk of its volume, a stream one of each volume that it reads
// and stream.BufferBytes.
package server

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/utils/clock"

	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/export/httpserver"
	"github.com/varvebackup/varve/internal/export/podspec"
)

const (
	// ReadyPath is the path that answers without a token whether the server can serve: 200 or 503. It is that of
	// KubeVirt's export pods.
	ReadyPath = podspec.ReadinessPath
	// ExportsPath is the path below which the volumes of a backup are.
	ExportsPath = "/exports/"
)

// Limits bound what clients take. Zero fields have the values of DefaultLimits.
type Limits struct {
	// Connections is how many connections are open. One more closes the oldest that serves no request with the token.
	Connections int
	// Requests is how many requests with the token are served at once. One more is answered with 503 and Retry-After.
	// A volume of a stream counts as a request while it is read.
	Requests int
	// ParallelVolumes is how many volumes a stream reads at once, as far as Requests has room.
	ParallelVolumes int
	// Stall is how long a client may take for one piece of an answer, of at most 256 KiB.
	Stall time.Duration
	// HeaderTime is how long a client has for the TLS handshake, and for the header of a request.
	HeaderTime time.Duration
	// IdleTime is how long a connection stays open without a request.
	IdleTime time.Duration
	// Keepalive is how long a stream may be silent before it has a frame that says nothing.
	Keepalive time.Duration
	// Resume is how long an answer that has begun waits for a volume that cannot be reached, before it is cut.
	Resume time.Duration
}

// DefaultLimits are the limits of an export pod.
var DefaultLimits = Limits{
	Connections: 1000, Requests: 64, ParallelVolumes: 8,
	Stall: 2 * time.Minute, HeaderTime: 10 * time.Second, IdleTime: time.Minute, Keepalive: 10 * time.Second,
	Resume: 30 * time.Second,
}

func (l Limits) withDefaults() Limits {
	setDefault(&l.Connections, DefaultLimits.Connections)
	setDefault(&l.Requests, DefaultLimits.Requests)
	setDefault(&l.ParallelVolumes, DefaultLimits.ParallelVolumes)
	setDefault(&l.Stall, DefaultLimits.Stall)
	setDefault(&l.HeaderTime, DefaultLimits.HeaderTime)
	setDefault(&l.IdleTime, DefaultLimits.IdleTime)
	setDefault(&l.Keepalive, DefaultLimits.Keepalive)
	setDefault(&l.Resume, DefaultLimits.Resume)
	return l
}

func setDefault[T int | time.Duration](field *T, value T) {
	if *field <= 0 {
		*field = value
	}
}

// Config is what a Server serves, and to whom. Token is required, and GetCertificate for Serve.
type Config struct {
	// Volumes has the volumes with these Names. Without Names there is no backup to serve.
	Volumes export.Volumes
	Names   []string
	// Token returns the token that opens everything. It is called for each request, so that it may change.
	Token func() ([]byte, error)
	// Ready returns why the server cannot serve now, or nil. Nil means that it always can.
	Ready func(context.Context) error
	// GetCertificate is called for each handshake, so that the certificate may change.
	GetCertificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	Limits         Limits
	Hooks          Hooks
	// Log is for what operators look for: refused tokens and failures. It never gets a query or a header.
	Log   *slog.Logger
	Clock clock.WithTicker
}

// Server answers requests. It is safe for concurrent use.
type Server struct {
	Config
	prefixes []prefix
	slots    slots
	// refusals bounds how many refused tokens are logged. All of them are counted.
	refusals *rate.Limiter
}

// prefix is the handler of the paths that begin with path. Volume and endpoint are for Hooks.Answered.
type prefix struct {
	path, volume, endpoint string
	handler                http.Handler
}

// New returns a server of c.
func New(c Config) (*Server, error) {
	if c.Token == nil {
		return nil, errors.New("an export server needs a token")
	}
	c.Limits = c.Limits.withDefaults()
	c.Hooks = c.Hooks.withDefaults()
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	s := &Server{Config: c, slots: slots{free: c.Limits.Requests}, refusals: rate.NewLimiter(rate.Every(time.Second), refusalsLogged)}
	if len(c.Names) > 0 {
		s.Handle(ExportsPath, "", http.HandlerFunc(s.serveExports))
	}
	return s, nil
}

// Handle adds a handler for the paths that begin with path, for requests with the token and within the limits. Its
// Hooks.Answered come with the endpoint. The longest path counts. Call it before the first request.
func (s *Server) Handle(path, endpoint string, h http.Handler) { s.HandleVolume(path, "", endpoint, h) }

// HandleVolume is Handle for what belongs to one volume.
func (s *Server) HandleVolume(path, volume, endpoint string, h http.Handler) {
	s.prefixes = append(s.prefixes, prefix{path: path, volume: volume, endpoint: endpoint, handler: h})
}

// InFlight returns how many requests with the token are being served. A stream counts once for each volume that it reads.
func (s *Server) InFlight() int { return s.slots.taken(s.Limits.Requests) }

func (s *Server) findHandler(path string) (found prefix) {
	for _, p := range s.prefixes {
		if strings.HasPrefix(path, p.path) && len(p.path) > len(found.path) {
			found = p
		}
	}
	return found
}

// ServeHTTP answers a request.
func (s *Server) ServeHTTP(plain http.ResponseWriter, r *http.Request) {
	defer func() {
		switch p := recover(); p {
		case nil:
		case http.ErrAbortHandler:
			panic(p)
		default:
			s.Log.Error("panic", "panic", p, "stack", string(debug.Stack()))
			panic(http.ErrAbortHandler)
		}
	}()
	w := &response{Writer: httpserver.NewWriter(plain, r, s.Limits.Stall, s.Clock)}
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	if r.ContentLength != 0 {
		w.DropBody(s.Limits.HeaderTime)
	}
	if r.URL.Path == ReadyPath {
		s.serveReadiness(w, r)
		return
	}
	if err := s.checkToken(r); err != nil {
		w.refuse(err)
		return
	}
	defer httpserver.BeginRequest(r.Context())()
	slot := s.slots.take(1)
	defer s.slots.release(slot)
	if slot == 0 {
		s.Hooks.Limited()
		w.Header().Set("Retry-After", "1")
		w.refuse(refusef(http.StatusServiceUnavailable, "%d requests are being served", s.Limits.Requests))
		return
	}
	found := s.findHandler(r.URL.EscapedPath())
	w.volume, w.endpoint = found.volume, found.endpoint
	began := s.Clock.Now()
	defer func() { s.Hooks.Answered(w.volume, w.endpoint, w.Status(), s.Clock.Since(began)) }()
	switch {
	case found.handler == nil:
		w.refuse(refusef(http.StatusNotFound, "no such path"))
	case r.ContentLength != 0 && (r.Method == http.MethodGet || r.Method == http.MethodHead):
		w.refuse(refusef(http.StatusBadRequest, "a %s has no body", r.Method))
	default:
		found.handler.ServeHTTP(w, r)
		w.Finish()
	}
}

func (s *Server) serveReadiness(w *response, r *http.Request) {
	if err := allowMethods(w, r); err != nil {
		w.refuse(err)
		return
	}
	if s.Ready != nil {
		if err := s.Ready(r.Context()); err != nil {
			w.refuse(refusef(http.StatusServiceUnavailable, "not ready"))
			return
		}
	}
	w.writeText(http.StatusOK, "text/plain; charset=utf-8", []byte("ok\n"))
}

// allowMethods refuses a request that is not a GET or HEAD.
func allowMethods(w http.ResponseWriter, r *http.Request) error {
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return nil
	}
	w.Header().Set("Allow", "GET, HEAD")
	return refusef(http.StatusMethodNotAllowed, "the method is GET or HEAD")
}
