package source

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"regexp"
	"strconv"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repositoryaccess"
	"github.com/varvebackup/varve/internal/store/handover"
	"github.com/varvebackup/varve/internal/store/upload"
)

const (
	// stallTimeout is how long the server may send nothing.
	stallTimeout = 30 * time.Second
	maxRedirects = 10
	// maxHeaderBytes bounds the header of an answer.
	maxHeaderBytes = 256 << 10
)

var (
	errStalled = errclass.Errorf(errclass.Transient, "the server sent nothing for %s", stallTimeout)
	// errChanged means that the download cannot be continued, and has to start again.
	errChanged = errclass.New(errclass.Transient, "the file on the server has changed during the download")
)

// remote is the file on the server.
type remote struct {
	client *http.Client
	url    *url.URL
	// uploads are the connections of an upload; nil: there is a server.
	uploads *upload.Listener
	clock   clock.WithTickerAndDelayedExecution
}

// newUploadRemote returns the file that the command has that uploads the image. It listens for the command.
func newUploadRemote(ctx context.Context, o *Options, image string) (_ *remote, err error) {
	var uploads *upload.Listener
	if o.Listener != nil {
		uploads = upload.NewListener(o.Listener, image, o.Clock, o.Log)
	} else if uploads, err = upload.Listen(ctx, image, o.Clock, o.Log); err != nil {
		return nil, err
	}
	transport := &http.Transport{
		DialContext: uploads.DialContext, DisableCompression: true, MaxIdleConnsPerHost: rangeReaders,
		MaxResponseHeaderBytes: maxHeaderBytes,
	}
	refuse := func(*http.Request, []*http.Request) error {
		return errclass.Errorf(errclass.Invalid, "the other side of the upload redirects, as no command does")
	}
	return &remote{
		client: &http.Client{Transport: transport, CheckRedirect: refuse},
		url:    &url.URL{Scheme: "http", Host: "upload", Path: "/"}, uploads: uploads, clock: o.Clock,
	}, nil
}

// close ends the connections. It waits for those of an upload.
func (r *remote) close() error {
	r.client.CloseIdleConnections()
	if r.uploads == nil {
		return nil
	}
	return r.uploads.Close()
}

// isWaiting reports whether nothing can be read because no command that uploads is connected.
func (r *remote) isWaiting() bool { return r.uploads != nil && !r.uploads.IsConnected() }

func newRemote(o *Options, source *handover.Source, secrets *repositoryaccess.Secrets) (*remote, error) {
	u, err := url.Parse(source.URL)
	if err != nil {
		return nil, errclass.Errorf(errclass.Invalid, "the address of the image is not a URL")
	}
	hideSecrets(secrets, u)
	transport := o.Transport
	if transport == nil {
		if transport, err = newTransport(source.CACertificate); err != nil {
			return nil, err
		}
	}
	client := &http.Client{Transport: hidingTransport{transport, secrets}, CheckRedirect: checkRedirect}
	return &remote{client: client, url: u, clock: o.Clock}, nil
}

// hidingTransport hides the addresses that servers redirect to. Errors hold those that cannot be used.
type hidingTransport struct {
	http.RoundTripper

	secrets *repositoryaccess.Secrets
}

// RoundTrip implements http.RoundTripper.
func (t hidingTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := t.RoundTripper.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	if location := response.Header.Get("Location"); location != "" {
		t.secrets.Hide(location)
		if u, err := url.Parse(location); err == nil {
			hideSecrets(t.secrets, u)
		}
	}
	return response, nil
}

// CloseIdleConnections is what http.Client calls.
func (t hidingTransport) CloseIdleConnections() {
	if c, ok := t.RoundTripper.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// hideSecrets keeps what an address may hold secret out of messages.
func hideSecrets(secrets *repositoryaccess.Secrets, u *url.URL) {
	secrets.Hide(u.User.String(), u.RawQuery)
	password, _ := u.User.Password()
	secrets.Hide(password)
}

func newTransport(certificates string) (http.RoundTripper, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if certificates != "" {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM([]byte(certificates)) {
			return nil, errclass.Errorf(errclass.Invalid, "caCertificate holds no certificate in PEM format")
		}
	}
	return &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            (&net.Dialer{Timeout: stallTimeout}).DialContext,
		TLSClientConfig:        config,
		TLSHandshakeTimeout:    stallTimeout,
		ForceAttemptHTTP2:      true,
		DisableCompression:     true,
		MaxIdleConnsPerHost:    rangeReaders,
		IdleConnTimeout:        time.Minute,
		MaxResponseHeaderBytes: maxHeaderBytes,
	}, nil
}

// checkRedirect refuses a redirect that leaves https, or comes after too many others.
func checkRedirect(next *http.Request, via []*http.Request) error {
	next.Header.Del("Referer") // It has the query of the address before.
	switch {
	case len(via) >= maxRedirects:
		return errclass.Errorf(errclass.Invalid, "the server redirects more than %d times", maxRedirects)
	case next.URL.Scheme != "https" && next.URL.Scheme != "http":
		return errclass.Errorf(errclass.Invalid, "the server redirects to %s://, which is not supported", next.URL.Scheme)
	case next.URL.Scheme == "http" && via[len(via)-1].URL.Scheme == "https":
		return errclass.Errorf(errclass.Invalid, "the server redirects from https to http, which is not safe")
	}
	return nil
}

// String returns the address without its secrets.
func (r *remote) String() string {
	if r.uploads != nil {
		return "the uploaded file"
	}
	return r.url.Scheme + "://" + r.url.Host + r.url.EscapedPath()
}

// describePeer names the other side in messages.
func (r *remote) describePeer() string {
	if r.uploads != nil {
		return "the command that uploads"
	}
	return r.url.Host
}

// version identifies the content of the file on the server.
type version struct {
	// bytes is the size of the file, or -1 if it is not known.
	bytes int64
	// validator is what If-Range takes: a strong ETag or a date. Without it, parts of two files could be mixed.
	validator string
	// etag and modified are the headers.
	etag, modified string
	// ranges says that the server sends a part of the file if it is asked for one.
	ranges bool
}

// canContinue reports whether parts of the file can be asked for, and are known to be of the same file.
func (v *version) canContinue() bool { return v.ranges && v.validator != "" }

// answer is the body of an answer. It stops to wait when the server sends nothing for too long.
type answer struct {
	*http.Response
	remote *remote
	stop   context.CancelCauseFunc
	cause  func() error
}

// get asks for the bytes of the file from first to last; last -1 is the end. If the file is not the one of v, or its
// server does not send parts, the answer is all of it (200). v is nil in the first request.
func (r *remote) get(ctx context.Context, v *version, first, last int64) (*answer, error) {
	parent := ctx
	ctx, stop := context.WithCancelCause(ctx)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url.String(), http.NoBody)
	if err != nil {
		stop(nil)
		return nil, errclass.Errorf(errclass.Invalid, "the address %s cannot be used", r)
	}
	text := fmt.Sprintf("bytes=%d-", first)
	if last >= 0 {
		text += strconv.FormatInt(last, 10)
	}
	request.Header.Set("Range", text)
	request.Header.Set("Accept-Encoding", "identity")
	if v != nil {
		request.Header.Set("If-Range", v.validator)
	}
	response, err := r.send(request, func() { stop(errStalled) }) //nolint:bodyclose // answer.Close does.
	if err != nil {
		err = r.describe(ctx, err)
		stop(nil)
		if parent.Err() != nil {
			err = context.Cause(parent)
		}
		return nil, err
	}
	a := &answer{Response: response, remote: r, stop: stop, cause: func() error { return context.Cause(ctx) }}
	if err := a.checkStatus(first); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return a, nil
}

// send sends a request. It calls stalled if no answer comes for too long. The time that an upload waits for a connection
// does not count.
func (r *remote) send(request *http.Request, stalled func()) (*http.Response, error) {
	if r.uploads == nil {
		defer r.clock.AfterFunc(stallTimeout, stalled).Stop()
		return r.client.Do(request)
	}
	var mu sync.Mutex
	var timer clock.Timer
	stopTimer := func() {
		if timer != nil {
			timer.Stop()
		}
	}
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) {
		mu.Lock()
		defer mu.Unlock()
		stopTimer() // There may have been another connection before.
		timer = r.clock.AfterFunc(stallTimeout, stalled)
	}}
	defer func() {
		mu.Lock()
		defer mu.Unlock()
		stopTimer()
	}()
	return r.client.Do(request.WithContext(httptrace.WithClientTrace(request.Context(), trace)))
}

// describe returns an error of a request without the address, and with a class.
func (r *remote) describe(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		err = wrapped.Err
	}
	var verification *tls.CertificateVerificationError
	if errors.As(err, &verification) {
		return errclass.Errorf(errclass.Denied, "get %s: the server's certificate is not trusted: %w", r, err)
	}
	if errclass.Of(err) != errclass.None {
		return fmt.Errorf("get %s: %w", r, err)
	}
	return errclass.Errorf(errclass.Transient, "get %s: %w", r, err)
}

// checkStatus refuses an answer that is not the file or the part of it from first on.
func (a *answer) checkStatus(first int64) error {
	class := errclass.Invalid
	switch code := a.StatusCode; {
	case code == http.StatusOK:
		return nil
	case code == http.StatusPartialContent:
		begin, _, err := a.parseRange()
		if err == nil && begin != first {
			err = errclass.Errorf(errclass.Invalid, "%s sent the bytes from %d on, and was asked for those from %d on",
				a.remote, begin, first)
		}
		return err
	case code == http.StatusRequestedRangeNotSatisfiable && first == 0:
		return errclass.Errorf(errclass.Invalid, "%s is empty", a.remote)
	case code == http.StatusRequestedRangeNotSatisfiable:
		return errChanged
	case code >= 500, code == http.StatusTooManyRequests, code == http.StatusRequestTimeout:
		class = errclass.Transient
	case code == http.StatusNotFound, code == http.StatusGone:
		class = errclass.NotFound
	case code == http.StatusUnauthorized, code == http.StatusForbidden:
		class = errclass.Denied
	}
	text := http.StatusText(a.StatusCode)
	return errclass.Errorf(class, "get %s: the server answers %d %s", a.remote, a.StatusCode, text)
}

// contentRange is the header Content-Range (RFC 9110, section 14.4).
var contentRange = regexp.MustCompile(`^bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)$`)

// parseRange returns the first byte of a part, and the size of the file, or -1 if it is not known.
func (a *answer) parseRange() (first, bytes int64, err error) {
	parts := contentRange.FindStringSubmatch(a.Header.Get("Content-Range"))
	if parts == nil {
		return 0, 0, errclass.Errorf(errclass.Invalid, "%s sent a part of the file without a valid Content-Range", a.remote)
	}
	first, _ = strconv.ParseInt(parts[1], 10, 64) // The expression has checked both.
	bytes = -1
	if parts[3] != "*" {
		bytes, _ = strconv.ParseInt(parts[3], 10, 64)
	}
	return first, bytes, nil
}

// version returns what the answer says about the file.
func (a *answer) version() (version, error) {
	v := version{bytes: a.ContentLength, etag: a.Header.Get("ETag"), modified: a.Header.Get("Last-Modified")}
	if a.StatusCode == http.StatusPartialContent {
		_, bytes, err := a.parseRange()
		if err != nil {
			return v, err
		}
		v.bytes, v.ranges = bytes, true
	}
	v.validator = v.modified
	if v.etag != "" && v.etag[0] == '"' { // A weak one may stand for different bytes.
		v.validator = v.etag
	}
	return v, nil
}

// checkSame fails with errChanged unless the answer is a part of the file of v.
func (a *answer) checkSame(v *version) error {
	now, err := a.version()
	if err != nil {
		return err
	}
	if now.modified == "" { // An answer to If-Range need not repeat it (RFC 9110, section 15.3.7).
		now.modified = v.modified
	}
	if now.ranges != v.ranges || now.bytes != v.bytes || now.etag != v.etag || now.modified != v.modified {
		return errChanged
	}
	return nil
}

// Read implements io.Reader.
func (a *answer) Read(p []byte) (int, error) {
	timer := a.remote.clock.AfterFunc(stallTimeout, func() { a.stop(errStalled) })
	n, err := a.Body.Read(p)
	timer.Stop()
	if n > 0 && a.remote.uploads != nil {
		a.remote.uploads.NoteByte()
	}
	if err != nil && err != io.EOF { //nolint:errorlint // A wrapped io.EOF is another error.
		if cause := a.cause(); cause != nil {
			err = cause
		}
		if errclass.Of(err) == errclass.None {
			err = errclass.Errorf(errclass.Transient, "the connection to %s broke: %w", a.remote.describePeer(), err)
		}
	}
	return n, err
}

// Close implements io.Closer.
func (a *answer) Close() error {
	a.stop(nil)
	if err := a.Body.Close(); err != nil {
		return fmt.Errorf("close the answer of %s: %w", a.remote.describePeer(), err)
	}
	return nil
}
