package errclass_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/varvebackup/varve/internal/errclass"
)

func TestClasses_haveAllCodes(t *testing.T) {
	t.Parallel()
	reasons := map[string]bool{}
	for _, class := range errclass.All {
		wrapped := fmt.Errorf("attach volume a: %w", class)
		if errclass.Of(wrapped) != class {
			t.Errorf("%s: class %v", class, errclass.Of(wrapped))
		}
		if errclass.ExitCode(wrapped) == errclass.ExitOK || errclass.GRPCCode(wrapped) == codes.OK || errclass.HTTPStatus(wrapped) < 400 {
			t.Errorf("%s: exit code %d, gRPC %s, HTTP %d", class, errclass.ExitCode(wrapped), errclass.GRPCCode(wrapped), errclass.HTTPStatus(wrapped))
		}
		if reason := errclass.Reason(wrapped); reason == "Failed" || reasons[reason] {
			t.Errorf("%s: reason %q", class, reason)
		}
		reasons[errclass.Reason(wrapped)] = true
	}
}

func TestCodes(t *testing.T) {
	t.Parallel()
	errBusy := errclass.New(errclass.Transient, "domain is busy")
	for _, c := range []struct {
		err    error
		exit   int
		grpc   codes.Code
		http   int
		reason string
	}{
		{nil, errclass.ExitOK, codes.OK, 200, "Failed"},
		{errors.New("x"), errclass.ExitFailure, codes.Internal, 500, "Failed"},
		{fmt.Errorf("x: %w", errclass.NotFound), errclass.ExitNotFound, codes.NotFound, 404, "NotFound"},
		{fmt.Errorf("x: %w", errclass.Expired), errclass.ExitRefused, codes.FailedPrecondition, 410, "Expired"},
		{fmt.Errorf("x: %w", errBusy), errclass.ExitUnreachable, codes.Unavailable, 503, "Transient"},
		{context.DeadlineExceeded, errclass.ExitTimeout, codes.DeadlineExceeded, 504, "Failed"},
		{context.Canceled, errclass.ExitInterrupted, codes.Canceled, 500, "Failed"},
		{fmt.Errorf("%w: %w", errclass.Corrupt, context.Canceled), errclass.ExitInterrupted, codes.DataLoss, 500, "Corrupt"},
		{errors.Join(errclass.NotFound, errclass.Corrupt), errclass.ExitFailure, codes.DataLoss, 500, "Corrupt"},
	} {
		if exit, grpc, http, reason := errclass.ExitCode(c.err), errclass.GRPCCode(c.err), errclass.HTTPStatus(c.err), errclass.Reason(c.err); exit != c.exit ||
			grpc != c.grpc || http != c.http || reason != c.reason {
			t.Errorf("%v: exit code %d, gRPC %s, HTTP %d, reason %s", c.err, exit, grpc, http, reason)
		}
	}
}

func TestErrorf_saysItsTextAlone(t *testing.T) {
	t.Parallel()
	errInUse := errclass.New(errclass.Conflict, "in use")
	err := errclass.Errorf(errInUse, "disk a is in use: %w", fs.ErrExist)
	if err.Error() != "disk a is in use: file already exists" {
		t.Error(err)
	}
	for _, is := range []error{errInUse, errclass.Conflict, fs.ErrExist} {
		if !errors.Is(err, is) {
			t.Errorf("it is not %v", is)
		}
	}
}
