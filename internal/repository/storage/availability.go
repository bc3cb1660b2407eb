package storage

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/url"
	"slices"
	"syscall"

	"github.com/minio/minio-go/v7"

	"github.com/varvebackup/varve/internal/errclass"
)

// busyStatuses are the statuses with which a server, or a proxy in front of it, says that it cannot serve a request
// now.
var busyStatuses = []int{
	http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusBadGateway,
	http.StatusServiceUnavailable, http.StatusGatewayTimeout,
}

// busyCodes are codes of S3 servers that say the same with another status.
var busyCodes = []string{
	"RequestTimeout", "SlowDown", "Throttling", "ThrottlingException", "InternalError",
	"ServiceUnavailable",
}

// networkErrnos are the error numbers of a connection that cannot be made, or that has broken.
var networkErrnos = []error{
	syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.ECONNABORTED, syscall.EPIPE, syscall.ETIMEDOUT,
	syscall.EHOSTUNREACH,
	syscall.EHOSTDOWN, syscall.ENETUNREACH, syscall.ENETDOWN, syscall.ENETRESET,
}

// IsUnavailable reports whether an error of a storage means that the storage, or what gives the keys for it, does not
// answer or is too busy: it refuses connections, its name is not resolved, a connection breaks, a request times out,
// or the answer says so. The same request may succeed later. A certificate that is not trusted is no such error: it
// stays as it is until somebody changes something.
func IsUnavailable(err error) bool {
	class := errclass.Of(err)
	if err == nil || class != errclass.None && class != errclass.Transient || isTLSMismatch(err) || refusedAsFull(err) {
		return false
	}
	var answer minio.ErrorResponse
	if errors.As(err, &answer) {
		return slices.Contains(busyStatuses, answer.StatusCode) || slices.Contains(busyCodes, answer.Code)
	}
	return class == errclass.Transient || isNetworkFailure(err)
}

// isNetworkFailure reports whether a request got no answer. The S3 client replaces the end of a connection by a text
// of its own, so every request that fails without an answer counts, unless it could not even be made.
func isNetworkFailure(err error) bool {
	var name *net.DNSError
	var network net.Error
	var request *url.Error
	switch {
	case errors.As(err, &name), errors.As(err, &network) && network.Timeout():
		return true
	case slices.ContainsFunc(networkErrnos, func(errno error) bool { return errors.Is(err, errno) }):
		return true
	}
	return errors.As(err, &request) && request.Op != "parse"
}

// isTLSMismatch reports whether client and server cannot agree on a connection.
func isTLSMismatch(err error) bool {
	var verification *tls.CertificateVerificationError
	var unknown x509.UnknownAuthorityError
	var hostname x509.HostnameError
	var invalid x509.CertificateInvalidError
	var record tls.RecordHeaderError
	var network *net.OpError // TLS alerts have an operation of their own.
	return errors.As(err, &verification) || errors.As(err, &unknown) || errors.As(err, &hostname) ||
		errors.As(err, &invalid) ||
		errors.As(err, &record) || errors.Is(err, http.ErrSchemeMismatch) ||
		errors.As(err, &network) && (network.Op == "remote error" || network.Op == "local error")
}

// briefReason says in a few words why a storage does not answer.
func briefReason(err error) string {
	var answer minio.ErrorResponse
	var name *net.DNSError
	switch {
	case errors.As(err, &answer):
		return answer.Code + ": " + answer.Message
	case errors.As(err, &name):
		return name.Error()
	}
	for _, errno := range networkErrnos {
		if errors.Is(err, errno) {
			return errno.Error()
		}
	}
	var request *url.Error
	if errors.As(err, &request) {
		return request.Err.Error()
	}
	return err.Error()
}
