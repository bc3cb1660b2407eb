package httpserver

import (
	"net/http"
	"time"

	"k8s.io/utils/clock"
)

// PieceBytes is how much a client takes within the stall time. A client that takes 1 MiB/s is far from it, and one
// that takes nothing is cut.
const PieceBytes = 256 << 10

// Writer writes an answer in pieces, each with a deadline. It is for one request, and for one goroutine at a time.
type Writer struct {
	http.ResponseWriter
	control *http.ResponseController
	clock   clock.PassiveClock
	stall   time.Duration
	// multiplexed means HTTP/2, where a deadline that passes ends the answer even if nothing waits to be written.
	multiplexed bool
	// status is 0 until the answer begins.
	status int
}

// NewWriter returns a Writer for the answer to r. A client that takes nothing for stall is cut.
func NewWriter(w http.ResponseWriter, r *http.Request, stall time.Duration, c clock.PassiveClock) *Writer {
	writer := &Writer{ResponseWriter: w, control: http.NewResponseController(w), clock: c, stall: stall, multiplexed: r.ProtoMajor > 1}
	writer.extendDeadline()
	return writer
}

// Unwrap is for http.ResponseController.
func (w *Writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Status returns the status of the answer, or 0 if it has not begun.
func (w *Writer) Status() int { return w.status }

// WriteHeader begins the answer.
func (w *Writer) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
		w.extendDeadline()
		w.ResponseWriter.WriteHeader(status)
	}
}

// Write sends p. It ends with an error if the client takes nothing for too long.
func (w *Writer) Write(p []byte) (written int, err error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	for len(p) > 0 && err == nil {
		var n int
		w.extendDeadline()
		n, err = w.ResponseWriter.Write(p[:min(len(p), PieceBytes)])
		written, p = written+n, p[n:]
	}
	if w.multiplexed && err == nil {
		err = w.control.SetWriteDeadline(time.Time{})
	}
	return written, err
}

// Flush sends what is buffered.
func (w *Writer) Flush() error {
	w.extendDeadline()
	err := w.control.Flush()
	if w.multiplexed && err == nil {
		err = w.control.SetWriteDeadline(time.Time{})
	}
	return err
}

// Finish leaves a deadline for what the HTTP server still has to send after the handler.
func (w *Writer) Finish() { w.extendDeadline() }

func (w *Writer) extendDeadline() {
	// It fails only where there is no connection, as in tests.
	w.control.SetWriteDeadline(w.clock.Now().Add(w.stall)) //nolint:errcheck // the write itself fails if the connection is gone
}

// DropBody sees to it that the server does not wait for a request's body that nobody reads.
func (w *Writer) DropBody(patience time.Duration) {
	w.Header().Set("Connection", "close")
	w.control.SetReadDeadline(w.clock.Now().Add(patience)) //nolint:errcheck // as in extendDeadline
}
