package endpoint

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/varvebackup/varve/internal/errclass"
)

// ErrOtherPoint is of class Conflict: the endpoints serve another point in time than the one that was asked for.
var ErrOtherPoint = errclass.New(errclass.Conflict, "the endpoints serve another point in time")

// Error is an error of the endpoints, as opposed to one of whoever uses what they send.
type Error struct{ Err error }

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// maxReasonBytes is how much of a refusal is read.
const maxReasonBytes = 1 << 10

var statusClasses = map[int]error{
	http.StatusUnauthorized: errclass.Denied, http.StatusForbidden: errclass.Denied,
	http.StatusNotFound: errclass.NotFound, http.StatusGone: errclass.Expired,
	http.StatusPreconditionFailed: ErrOtherPoint, http.StatusInsufficientStorage: errclass.Exhausted,
	// KubeVirt 1.8 answers with 500 while its launcher is about to connect again.
	http.StatusTooManyRequests: errclass.Transient, http.StatusInternalServerError: errclass.Transient, http.StatusBadGateway: errclass.Transient,
	http.StatusServiceUnavailable: errclass.Transient, http.StatusGatewayTimeout: errclass.Transient,
}

// refusedError is an answer with a status that is no success.
type refusedError struct {
	class  error
	status int
	text   string
	// after is how long the server asks to wait; 0 if it does not.
	after time.Duration
}

func (e *refusedError) Error() string {
	text := "the server answered " + strconv.Itoa(e.status) + " " + http.StatusText(e.status)
	if e.text != "" {
		text += ": " + e.text
	}
	return text
}

func (e *refusedError) Unwrap() error { return e.class }

// refusal reads the reason of a refusal. A server that sends the token back does not bring it into a log.
func refusal(r *http.Response, token string) error {
	defer r.Body.Close()                                          //nolint:errcheck // it was only read
	text, _ := io.ReadAll(io.LimitReader(r.Body, maxReasonBytes)) // a part is as good
	e := &refusedError{class: statusClasses[r.StatusCode], status: r.StatusCode, text: strings.Join(strings.Fields(string(text)), " ")}
	if token != "" {
		e.text = strings.ReplaceAll(e.text, token, "(token)")
	}
	if e.class == nil && r.StatusCode < http.StatusInternalServerError {
		e.class = errclass.Invalid
	}
	if seconds, err := strconv.Atoi(r.Header.Get("Retry-After")); err == nil && seconds > 0 {
		e.after = time.Duration(min(seconds, int(defaultPatience/time.Second))) * time.Second
	}
	return e
}

// classifyFailure returns the error of an attempt that brought no answer, or only a part. An error that has a class keeps it.
func classifyFailure(ctx context.Context, err error) error {
	var request *url.Error
	if errors.As(err, &request) { // It has the URL, which the caller names.
		err = request.Err
	}
	var certificate *tls.CertificateVerificationError
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errclass.Of(err) != errclass.None:
		return err
	case errors.As(err, &certificate):
		return errclass.Errorf(errclass.Denied, "the server is not the one that the backup names: %w", err)
	}
	return errclass.Errorf(errclass.Transient, "%w", err)
}

// isRetried reports whether another attempt may succeed.
func isRetried(err error) bool { return errclass.Of(err) == errclass.Transient }
