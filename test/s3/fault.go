package s3

import (
	"encoding/xml"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"time"
)

// Fault replaces the handling of a request. next passes the request to the server. To end the connection without a
// reply, or in the middle of one, a fault panics with http.ErrAbortHandler. Tests may write their own faults.
type Fault func(w http.ResponseWriter, r *http.Request, next http.Handler)

// InternalError replies as Amazon does to an internal failure: 500. The request does not reach the server.
func InternalError(w http.ResponseWriter, r *http.Request, _ http.Handler) {
	refuse(w, r, http.StatusInternalServerError, "InternalError", "We encountered an internal error. Please try again.")
}

// SlowDown replies as Amazon does to too many requests: 503. The request does not reach the server.
func SlowDown(w http.ResponseWriter, r *http.Request, _ http.Handler) {
	refuse(w, r, http.StatusServiceUnavailable, "SlowDown", "Please reduce your request rate.")
}

// refuse replies with an error in S3's format (Amazon S3 API Reference, "Error responses").
func refuse(w http.ResponseWriter, r *http.Request, status int, code, message string) {
	body, err := xml.Marshal(struct {
		XMLName                            xml.Name `xml:"Error"`
		Code, Message, Resource, RequestId string   //nolint:revive // the names of the elements
	}{Code: code, Message: message, Resource: r.URL.Path, RequestId: "fault"})
	if err != nil {
		panic(err)
	}
	// The client reads the reply only after it has sent everything.
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		panic(http.ErrAbortHandler)
	}
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	_, _ = w.Write(append([]byte(xml.Header), body...)) // the client may be gone
}

// DropReply lets the server handle the request, and closes the connection instead of passing on the reply.
func DropReply(_ http.ResponseWriter, r *http.Request, next http.Handler) {
	next.ServeHTTP(nowhere{}, r)
	panic(http.ErrAbortHandler)
}

// CutRequest resets the connection to the server after half of the request's body, and closes the connection to the
// client. A request without a body does not reach the server. (It resets the connection because over TLS versitygw
// 1.8.0 takes a connection that is closed with a close notification for the end of the object and keeps half of it,
// unless the client sent a checksum. The same happens when a client gives up.)
func CutRequest(_ http.ResponseWriter, r *http.Request, next http.Handler) {
	if r.ContentLength > 0 {
		body := &halfBody{ReadCloser: r.Body, left: r.ContentLength / 2}
		trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { body.server = info.Conn }}
		r = r.WithContext(httptrace.WithClientTrace(r.Context(), trace))
		r.Body = body
		next.ServeHTTP(nowhere{}, r)
	}
	panic(http.ErrAbortHandler)
}

// CutResponse closes the connection after half of the response's body. It drops a response without a body completely.
func CutResponse(w http.ResponseWriter, r *http.Request, next http.Handler) {
	next.ServeHTTP(&halfResponse{ResponseWriter: w}, r)
	panic(http.ErrAbortHandler)
}

// Reset resets the connection. The request does not reach the server.
func Reset(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	reset(conn)
}

// reset closes a connection in such a way that its peer sees an error instead of an end.
func reset(conn net.Conn) {
	if t, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = t.NetConn() // TLS would send a close notification
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // makes Close send RST
	}
	_ = conn.Close()
}

// Delay passes the request to the server after a time, unless the test has ended by then or the client has visibly gone.
func Delay(d time.Duration) Fault {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
			next.ServeHTTP(w, r)
		case <-r.Context().Done():
			panic(http.ErrAbortHandler)
		}
	}
}

var errCut = errors.New("cut by a fault")

// halfBody resets the connection to the server after left bytes.
type halfBody struct {
	io.ReadCloser

	left   int64
	server net.Conn
}

func (b *halfBody) Read(p []byte) (int, error) {
	if b.left == 0 {
		reset(b.server)
		return 0, errCut
	}
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}

// halfResponse sends the first half of the announced length and refuses everything after it.
type halfResponse struct {
	http.ResponseWriter

	left int64
}

func (w *halfResponse) WriteHeader(status int) {
	// If no length is announced, nothing is sent.
	length, _ := strconv.ParseInt(w.Header().Get("Content-Length"), 10, 64)
	w.left = length / 2
	w.ResponseWriter.WriteHeader(status)
}

func (w *halfResponse) Write(p []byte) (int, error) {
	n, err := w.ResponseWriter.Write(p[:min(int64(len(p)), w.left)])
	w.left -= int64(n)
	if err == nil && n < len(p) {
		err = errors.Join(errCut, http.NewResponseController(w.ResponseWriter).Flush())
	}
	return n, err
}

// nowhere is a ResponseWriter that discards the reply.
type nowhere struct{}

func (nowhere) Header() http.Header         { return http.Header{} }
func (nowhere) Write(p []byte) (int, error) { return len(p), nil }
func (nowhere) WriteHeader(int)             {}
