package errclass

import (
	"context"
	"errors"
	"net/http"

	"google.golang.org/grpc/codes"
)

// The exit codes of commands. Scripts rely on them.
const (
	ExitOK          = 0
	ExitFailure     = 1
	ExitUsage       = 2
	ExitNotFound    = 3
	ExitTimeout     = 4
	ExitRefused     = 5
	ExitUnreachable = 6
	ExitOverdue     = 7 // varve status: a machine lacks a restore point that it should have
	ExitInterrupted = 130
)

// outside is what a class is called outside the process.
type outside struct {
	exit int
	grpc codes.Code
	http int
}

var mapping = map[Class]outside{
	Unknown:   {ExitFailure, codes.Unknown, http.StatusInternalServerError},
	Corrupt:   {ExitFailure, codes.DataLoss, http.StatusInternalServerError},
	Denied:    {ExitRefused, codes.PermissionDenied, http.StatusForbidden},
	Conflict:  {ExitRefused, codes.FailedPrecondition, http.StatusConflict},
	Invalid:   {ExitRefused, codes.InvalidArgument, http.StatusBadRequest},
	NotFound:  {ExitNotFound, codes.NotFound, http.StatusNotFound},
	Expired:   {ExitRefused, codes.FailedPrecondition, http.StatusGone},
	Exhausted: {ExitFailure, codes.ResourceExhausted, http.StatusInsufficientStorage},
	Transient: {ExitUnreachable, codes.Unavailable, http.StatusServiceUnavailable},
}

// ExitCode returns the exit code of a command that ends with err. If the user or a timeout ended the command, nothing
// else counts.
func ExitCode(err error) int {
	switch c := Of(err); {
	case err == nil:
		return ExitOK
	case errors.Is(err, context.Canceled):
		return ExitInterrupted
	case errors.Is(err, context.DeadlineExceeded):
		return ExitTimeout
	case c != None:
		return mapping[c].exit
	}
	return ExitFailure
}

// GRPCCode returns the code of a call that ends with err.
func GRPCCode(err error) codes.Code {
	switch c := Of(err); {
	case err == nil:
		return codes.OK
	case c != None:
		return mapping[c].grpc
	case errors.Is(err, context.DeadlineExceeded):
		return codes.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		return codes.Canceled
	}
	return codes.Internal
}

// HTTPStatus returns the status of a response to a request that ends with err.
func HTTPStatus(err error) int {
	switch c := Of(err); {
	case err == nil:
		return http.StatusOK
	case c != None:
		return mapping[c].http
	case errors.Is(err, context.DeadlineExceeded):
		return http.StatusGatewayTimeout
	}
	return http.StatusInternalServerError
}

// Reason returns the reason of a condition that reports err, in CamelCase: the name of its class, or "Failed".
func Reason(err error) string {
	return names[Of(err)].reason
}
