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

// Fault is what happens to a request. next asks the server. To end the connection without a reply, or in the middle of one, it panics
// with http.ErrAbortHandler. Tests may write their own.
type Fault func(w http.ResponseWriter, r *http.Request, next http.Handler)

// InternalError is Amazon's answer when something broke: 500. The server is not asked.
func InternalError(w http.ResponseWriter, r *http.Request, _ http.Handler) {
	refuse(w, r, http.StatusInternalServerError, "InternalError", "We encountered an internal error. Please try again.")
}

// SlowDown is Amazon's answer when there are too many requests: 503. The server is not asked.
func SlowDown(w http.ResponseWriter, r *http.Request, _ http.Handler) {
	refuse(w, r, http.StatusServiceUnavailable, "SlowDown", "Please reduce your request rate.")
}

// refuse replies with an error as S3 has them (Amazon S3 API Reference, "Error responses").
func refuse(w http.ResponseWriter, r *http.Request, status int, code, message string) {
	body, err := xml.Marshal(struct {
		XMLName                            xml.Name `xml:"Error"`
		Code, Message, Resource, RequestId string   //nolint:revive // the names of the elements
	}{Code: code, Message: message, Resource: r.URL.Path, RequestId: "fault"})
	if err != nil {
		panic(err)
	}
	// The client reads its answer when it has sent everything.
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		panic(http.ErrAbortHandler)
	}
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	_, _ = w.Write(append([]byte(xml.Header), body...)) // to a client that may have gone
}

// DropReply has the server do what is asked, and closes the connection instead of saying so.
func DropReply(_ http.ResponseWriter, r *http.Request, next http.Handler) {
	next.ServeHTTP(nowhere{}, r)
	panic(http.ErrAbortHandler)
}

// CutRequest resets the connection to the server after half of the request's body, and closes that to the client. A request without a
// body does not reach the server. (Reset and not closed: over TLS versitygw 1.8.0 takes a connection that is closed with a goodbye for
// the end of the object and keeps half of it, unless the client sent a checksum. So it does when a client gives up.)
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

// CutResponse closes the connection after half of the response's body. One without a body is dropped whole.
func CutResponse(w http.ResponseWriter, r *http.Request, next http.Handler) {
	next.ServeHTTP(&halfResponse{ResponseWriter: w}, r)
	panic(http.ErrAbortHandler)
}

// Reset resets the connection. The server is not asked.
func Reset(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	reset(conn)
}

// reset closes a connection such that its peer sees an error and not an end.
func reset(conn net.Conn) {
	if t, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = t.NetConn() // TLS would say goodbye
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // makes Close send RST
	}
	_ = conn.Close()
}

// Delay asks the server after a time, unless the test has ended by then, or the client was seen to go.
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

// halfResponse refuses everything after half of the announced length, and sends what is before.
type halfResponse struct {
	http.ResponseWriter

	left int64
}

func (w *halfResponse) WriteHeader(status int) {
	// Without an announced length nothing is sent.
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

// nowhere is the client of a request whose reply nobody gets.
type nowhere struct{}

func (nowhere) Header() http.Header         { return http.Header{} }
func (nowhere) Write(p []byte) (int, error) { return len(p), nil }
func (nowhere) WriteHeader(int)             {}
