package proxy

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/utils/clock"

	"github.com/varvebackup/varve/internal/export/httpserver"
	"github.com/varvebackup/varve/internal/export/podspec"
)

const (
	// bufferBytes is what a request holds of its answer.
	bufferBytes = 64 << 10
	// failuresLogged is how many exports that cannot be reached are logged at once; then one a second is.
	failuresLogged = 20
)

// tokenHeader is the header with the token, as net/http writes it.
var tokenHeader = http.CanonicalHeaderKey(podspec.TokenHeader)

// Limits bound what clients take. Zero fields have the values of DefaultLimits.
type Limits struct {
	// Connections is how many connections of clients are open.
	Connections int
	// Pending is how many requests wait for an export's answer, whether their token is good or not, and
	// PendingPerNamespace how many of them for exports of one namespace.
	Pending, PendingPerNamespace int
	// Requests is how many answers are passed on at once, and RequestsPerNamespace how many of them of one namespace. Each
	// holds a buffer of 64 KiB.
	Requests, RequestsPerNamespace int
	// DialTime is how long a connection to an export may take, and AnswerTime how long its answer's header.
	DialTime, AnswerTime time.Duration
	// Stall is how long a client may take for one piece of an answer, of at most 256 KiB.
	Stall time.Duration
	// HeaderTime is how long a client has for the TLS handshake, and for the header of a request.
	HeaderTime time.Duration
	// IdleTime is how long a client's connection stays open without a request.
	IdleTime time.Duration
	// PartingTime is how long requests have to end when the proxy does.
	PartingTime time.Duration
}

// DefaultLimits are the limits of a pod of the proxy.
var DefaultLimits = Limits{
	Connections: 1000, Pending: 128, PendingPerNamespace: 32, Requests: 512, RequestsPerNamespace: 128,
	DialTime: 10 * time.Second, AnswerTime: time.Minute, Stall: 2 * time.Minute, HeaderTime: 10 * time.Second, IdleTime: time.Minute,
	PartingTime: 20 * time.Second,
}

func (l Limits) withDefaults() Limits {
	d := DefaultLimits
	for field, value := range map[*int]int{
		&l.Connections: d.Connections, &l.Pending: d.Pending, &l.PendingPerNamespace: d.PendingPerNamespace,
		&l.Requests: d.Requests, &l.RequestsPerNamespace: d.RequestsPerNamespace,
	} {
		if *field <= 0 {
			*field = value
		}
	}
	for field, value := range map[*time.Duration]time.Duration{
		&l.DialTime: d.DialTime, &l.AnswerTime: d.AnswerTime, &l.Stall: d.Stall, &l.HeaderTime: d.HeaderTime, &l.IdleTime: d.IdleTime,
		&l.PartingTime: d.PartingTime,
	} {
		if *field <= 0 {
			*field = value
		}
	}
	return l
}

// Options are what Run needs. Files and Log have no default.
type Options struct {
	Files  Files
	Limits Limits
	// Dial connects to exports. Nil: with the addresses that their names have in the cluster.
	Dial  Dial
	Log   *slog.Logger
	Clock clock.PassiveClock
}

// Proxy answers requests. It is safe for concurrent use.
type Proxy struct {
	limits            Limits
	log               *slog.Logger
	clock             clock.PassiveClock
	certificate       *httpserver.CertificateFiles
	authorities       *authorityFile
	transport         *http.Transport
	pending, requests *places
	buffers           sync.Pool
	// failures bounds how many failures are logged.
	failures *rate.Limiter
}

// New returns a proxy. The files need not be there yet.
func New(o Options) *Proxy {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	limits := o.Limits.withDefaults()
	authorities := &authorityFile{path: o.Files.Authorities, clock: o.Clock}
	return &Proxy{
		limits: limits, log: o.Log, clock: o.Clock, authorities: authorities,
		certificate: httpserver.NewCertificateFiles(o.Files.Certificate, o.Files.Key, o.Clock),
		transport:   newTransport(o.Dial, authorities, limits),
		pending:     &places{total: limits.Pending, perNamespace: limits.PendingPerNamespace},
		requests:    &places{total: limits.Requests, perNamespace: limits.RequestsPerNamespace},
		buffers:     sync.Pool{New: func() any { return new([bufferBytes]byte) }},
		failures:    rate.NewLimiter(rate.Every(time.Second), failuresLogged),
	}
}

// Serve answers HTTPS requests until ctx is done. It closes l.
func (p *Proxy) Serve(ctx context.Context, l net.Listener) error {
	defer p.transport.CloseIdleConnections()
	return httpserver.Serve(ctx, l, httpserver.Options{
		Handler: p, GetCertificate: p.certificate.Get, Connections: p.limits.Connections, HeaderTime: p.limits.HeaderTime,
		IdleTime: p.limits.IdleTime, Stall: p.limits.Stall, PartingTime: p.limits.PartingTime, Log: p.log,
	})
}

// ServeHTTP answers a request.
func (p *Proxy) ServeHTTP(plain http.ResponseWriter, r *http.Request) {
	defer func() {
		switch v := recover(); v {
		case nil:
		case http.ErrAbortHandler:
			panic(v)
		default:
			p.log.Error("panic", "panic", v, "stack", string(debug.Stack()))
			panic(http.ErrAbortHandler)
		}
	}()
	w := httpserver.NewWriter(plain, r, p.limits.Stall, p.clock)
	defer w.Finish()
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	if r.ContentLength != 0 {
		w.DropBody(p.limits.HeaderTime)
	}
	t, found := parseTarget(r.URL)
	switch {
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		w.Header().Set("Allow", "GET, HEAD")
		refuse(w, http.StatusMethodNotAllowed, "the method is GET or HEAD")
	case r.URL.Path == HealthPath:
		refuse(w, http.StatusOK, "ok")
	case r.URL.Path == ReadyPath:
		p.serveReadiness(w)
	case !found:
		refuse(w, http.StatusNotFound, "no such path")
	case r.ContentLength != 0:
		refuse(w, http.StatusBadRequest, "a "+r.Method+" has no body")
	case len(r.Header[tokenHeader]) != 1 || r.Header[tokenHeader][0] == "":
		w.Header().Set("Www-Authenticate", podspec.TokenHeader+` realm="export"`)
		refuse(w, http.StatusUnauthorized, "the token in the header "+podspec.TokenHeader+" is missing")
	default:
		p.forward(w, r, t)
	}
}

// refuse answers in one line.
func refuse(w http.ResponseWriter, status int, words string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	io.WriteString(w, words+"\n") //nolint:errcheck // nobody is left to tell
}

// refuseForNow answers that the request may succeed later.
func refuseForNow(w http.ResponseWriter, seconds, words string) {
	w.Header().Set("Retry-After", seconds)
	refuse(w, http.StatusServiceUnavailable, words)
}

// serveReadiness tells whether the proxy has all that it needs to reach exports. Whether there are any is another question.
func (p *Proxy) serveReadiness(w http.ResponseWriter) {
	if _, err := p.authorities.get(); err != nil {
		refuse(w, http.StatusServiceUnavailable, "not ready")
		return
	}
	refuse(w, http.StatusOK, "ok")
}

// forward asks the export and passes its answer on.
func (p *Proxy) forward(w *httpserver.Writer, r *http.Request, t target) {
	answer := p.ask(w, r, t)
	if answer == nil {
		return
	}
	defer answer.Body.Close() //nolint:errcheck // only read
	if answer.StatusCode != http.StatusUnauthorized && answer.StatusCode < http.StatusInternalServerError {
		defer httpserver.BeginRequest(r.Context())()
	}
	release := p.requests.take(t.namespace)
	if release == nil {
		refuseForNow(w, "1", "too many requests are being served")
		return
	}
	defer release()
	w.Header()["Content-Type"] = nil // do not guess
	copyHeaders(w.Header(), answer.Header, answerHeaders)
	w.WriteHeader(answer.StatusCode)
	if err := p.pass(w, answer); err != nil {
		panic(http.ErrAbortHandler) // the client must not take a part for the whole
	}
}

// ask sends the request to the export. It returns nil if it has answered the client itself.
func (p *Proxy) ask(w http.ResponseWriter, r *http.Request, t target) *http.Response {
	release := p.pending.take(t.namespace)
	if release == nil {
		refuseForNow(w, "1", "too many requests wait for exports")
		return nil
	}
	defer release()
	u, err := t.url(r.URL.RawQuery)
	if err != nil {
		refuse(w, http.StatusNotFound, "no such path")
		return nil
	}
	request := (&http.Request{Method: r.Method, URL: u, Host: u.Host, Header: http.Header{"User-Agent": nil}}).WithContext(r.Context())
	copyHeaders(request.Header, r.Header, requestHeaders)
	answer, err := p.transport.RoundTrip(request)
	switch {
	case err == nil && isAnswer(answer.StatusCode):
		return answer
	case err == nil:
		err = errors.Join(errors.New("status "+answer.Status), answer.Body.Close())
		p.logFailure(t, err)
		refuse(w, http.StatusBadGateway, "the export's answer makes no sense")
	case r.Context().Err() != nil:
		panic(http.ErrAbortHandler) // the client has gone
	default:
		p.logFailure(t, err)
		status, words := statusOf(err)
		if status == http.StatusServiceUnavailable {
			refuseForNow(w, "5", words)
			return nil
		}
		refuse(w, status, words)
	}
	return nil
}

// isAnswer reports whether an export may answer so. It leads clients nowhere else and switches to no other protocol.
func isAnswer(status int) bool {
	return status >= http.StatusOK && status < http.StatusMultipleChoices || status == http.StatusNotModified || status >= http.StatusBadRequest
}

// logFailure logs why an export cannot be reached. The error has neither headers nor a query.
func (p *Proxy) logFailure(t target, err error) {
	if p.failures.AllowN(p.clock.Now(), 1) {
		p.log.Warn("export not reached", "namespace", t.namespace, "export", t.export, "error", err)
	}
}

// pass sends the body of an answer as it comes. An answer whose length is not known may be a stream that is silent for
// long, so nothing of it waits here.
func (p *Proxy) pass(w *httpserver.Writer, answer *http.Response) error {
	buffer := p.buffers.Get().(*[bufferBytes]byte)
	defer p.buffers.Put(buffer)
	for {
		n, err := answer.Body.Read(buffer[:])
		if n > 0 {
			if _, err := w.Write(buffer[:n]); err != nil {
				return err
			}
			if answer.ContentLength < 0 {
				if err := w.Flush(); err != nil {
					return err
				}
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
