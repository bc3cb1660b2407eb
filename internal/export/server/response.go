package server

import (
	"net/http"
	"strconv"

	"github.com/varvebackup/varve/internal/export/httpserver"
)

// response writes an answer. It remembers what the answer is of.
type response struct {
	*httpserver.Writer
	// volume and endpoint are for Hooks.Answered.
	volume, endpoint string
}

// refuse answers with the status of err, if the answer has not begun. Otherwise it breaks the connection: the client
// sees that the answer is short.
func (w *response) refuse(err error) {
	if w.Status() != 0 {
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
	w.Finish()
}
