package repoaccess

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/minio/minio-go/v7"

	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/disk"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/mover"
	"github.com/varvebackup/varve/internal/repository"
	"github.com/varvebackup/varve/internal/repository/storage"
)

// What package disk refuses, a flag allows. Only the command line knows its name.
func TestRepositoryFailure_namesTheFlag(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		flag string
	}{
		{disk.ErrHasContent, "--overwrite"},
		{disk.ErrLargerTarget, "--larger"},
		{disk.ErrInUse, "--ignore-locks"},
		{disk.ErrBacking, "--backing"},
	} {
		var f *failure.Error
		if err := Explain(errclass.Errorf(c.err, "disk x: refused")); !errors.As(err, &f) || !strings.Contains(f.Hint, c.flag) {
			t.Errorf("%s: the hint is %q, want %s in it", c.err, f.Hint, c.flag)
		}
	}
}

func TestRepositoryFailures(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err  error
		code int
	}{
		"nothing":           {nil, errclass.ExitOK},
		"password":          {repository.ErrPassword, errclass.ExitRefused},
		"damage":            {errclass.Corrupt, errclass.ExitFailure},
		"others at it":      {errclass.Conflict, errclass.ExitRefused},
		"not there":         {errclass.NotFound, errclass.ExitNotFound},
		"half of an ID":     {mover.ErrPrefix, errclass.ExitUsage},
		"half and nothing":  {errors.Join(errclass.NotFound, mover.ErrPrefix), errclass.ExitUsage},
		"not possible":      {errclass.Invalid, errclass.ExitRefused},
		"damage beats all":  {errors.Join(errclass.NotFound, errclass.Corrupt), errclass.ExitFailure},
		"no storage":        {&url.Error{Op: "Get", URL: "http://x", Err: &net.OpError{Op: "dial", Err: errors.New("refused")}}, errclass.ExitUnreachable},
		"interrupted":       {context.Canceled, errclass.ExitInterrupted},
		"a failure already": {failure.Usage("x"), errclass.ExitUsage},
		"anything else":     {errors.New("x"), errclass.ExitFailure},
	} {
		wrapped := c.err
		if wrapped != nil {
			wrapped = fmt.Errorf("do it: %w", c.err)
		}
		if got := failure.Code(Explain(wrapped)); got != c.code {
			t.Errorf("%s: code %d, want %d", name, got, c.code)
		}
	}
}

// A wrong clock is no matter of keys, whatever the status of the answer.
func TestExplain_wrongClock(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusForbidden, http.StatusBadRequest} {
		var f *failure.Error
		err := fmt.Errorf("open: %w", minio.ErrorResponse{StatusCode: status, Code: storage.CodeClock})
		if err := Explain(err); !errors.As(err, &f) || f.Code != errclass.ExitFailure || !strings.HasPrefix(f.Hint, "set the clock") {
			t.Errorf("%d: %+v", status, f)
		}
	}
}
