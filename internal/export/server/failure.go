package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/varvebackup/varve/internal/errclass"
)

// statusError is an error with the status that tells it.
type statusError struct {
	status int
	text   string
}

func (e *statusError) Error() string { return e.text }

func refusef(status int, format string, args ...any) error {
	return &statusError{status: status, text: fmt.Sprintf(format, args...)}
}

// notInDisk refuses an offset that the disk does not have.
func notInDisk(w http.ResponseWriter, size int64) error {
	w.Header().Set("Content-Range", "bytes */"+strconv.FormatInt(size, 10))
	return refusef(http.StatusRequestedRangeNotSatisfiable, "the disk has %d bytes", size)
}

// statusOf returns the status for an error. What a volume finds wrong with a request of this server is no fault of the
// client's.
func statusOf(err error) int {
	var r *statusError
	switch {
	case errors.As(err, &r):
		return r.status
	case errors.Is(err, errclass.Invalid), errors.Is(err, errclass.Denied), errors.Is(err, errclass.Conflict):
		return http.StatusInternalServerError
	case errors.Is(err, context.Canceled):
		return http.StatusServiceUnavailable
	}
	return errclass.HTTPStatus(err)
}
