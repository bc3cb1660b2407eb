package server

import (
	"net/http"
	"strconv"
	"time"

	"k8s.io/utils/clock"
)

// pieceBytes is how much a client takes within Limits.Stall. A client that takes 1 MiB/s is far from it, and one
// that takes nothing is cut.
const pieceBytes = 256 << 10

// response writes an answer in pieces, each with a deadline. It remembers whether an answer has begun.
type response struct {
	http.ResponseWriter
	control *http.ResponseController
	clock   clock.PassiveClock
	stall   time.Duration
	// multiplexed means HTTP/2, where a deadline that passes ends the answer even if nothing waits to be written.
	multiplexed bool
	conn        *connection
	// status is 0 until the answer begins.
	status int
	// volume and endpoint are for Hooks.Answered.
	volume, endpoint string
}

func (s *Server) newResponse(w http.ResponseWriter, r *http.Request) *response {
	response := &response{
		ResponseWriter: w, control: http.NewResponseController(w), clock: s.Clock, stall: s.Limits.Stall,
		multiplexed: r.ProtoMajor > 1, conn: connectionOf(r.Context()),
	}
	response.extendDeadline()
	return response
}

// Unwrap is for http.ResponseController.
func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader begins the answer.
func (w *response) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
		w.extendDeadline()
		w.ResponseWriter.WriteHeader(status)
	}
}

// Write sends p. It ends with an error if the client takes nothing for too long.
func (w *response) Write(p []byte) (written int, err error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	for len(p) > 0 && err == nil {
		var n int
		w.extendDeadline()
		n, err = w.ResponseWriter.Write(p[:min(len(p), pieceBytes)])
		written, p = written+n, p[n:]
	}
	if w.multiplexed && err == nil {
		err = w.control.SetWriteDeadline(time.Time{})
	}
	return written, err
}

// Flush sends what is buffered.
func (w *response) Flush() error {
	w.extendDeadline()
	err := w.control.Flush()
	if w.multiplexed && err == nil {
		err = w.control.SetWriteDeadline(time.Time{})
	}
	return err
}

// finish leaves a deadline for what the HTTP server still has to send after the handler.
func (w *response) finish() { w.extendDeadline() }

func (w *response) extendDeadline() {
	// It fails only where there is no connection, as in tests.
	w.control.SetWriteDeadline(w.clock.Now().Add(w.stall)) //nolint:errcheck // the write itself fails if the connection is gone
}

// dropBody sees to it that the server does not wait for a body that nobody reads.
func (w *response) dropBody(patience time.Duration) {
	w.Header().Set("Connection", "close")
	w.control.SetReadDeadline(w.clock.Now().Add(patience)) //nolint:errcheck // as in extendDeadline
}

// refuse answers with the status of err, if the answer has not begun. Otherwise it breaks the connection: the client
// sees that the answer is short.
func (w *response) refuse(err error) {
	if w.status != 0 {
		panic(http.ErrAbortHandler)
	}
	h := w.Header()
	for _, name := range []string{"Content-Length", "Accept-Ranges", "ETag"} {
		h.Del(name)
	}
	status := statusOf(err)
	if status != http.StatusRequestedRangeNotSatisfiable {
		h.Del("Content-Range")
	}
	switch status {
	case http.StatusUnauthorized:
		h.Set("WWW-Authenticate", `x-kubevirt-export-token realm="export"`)
	case http.StatusServiceUnavailable:
		if h.Get("Retry-After") == "" {
			h.Set("Retry-After", "5")
		}
	}
	w.writeText(status, "text/plain; charset=utf-8", []byte(err.Error()+"\n"))
}

// writeText answers with a text that is there as a whole.
func (w *response) writeText(status int, contentType string, text []byte) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(status)
	w.Write(text) //nolint:errcheck // nobody is left to tell
	w.finish()
}
