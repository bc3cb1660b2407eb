package repoaccess

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"strings"
	"syscall"
	"testing"

	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/disk"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/mover"
	"github.com/varvebackup/varve/internal/repository"
	"github.com/varvebackup/varve/internal/repository/storage/advice/advicetest"
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

// The command line gives the advice that everybody gives.
func TestExplain_storage(t *testing.T) {
	t.Parallel()
	for _, c := range advicetest.Cases() {
		var f *failure.Error
		err := Explain(fmt.Errorf("back up disk a: %w", c.Err))
		switch ok := errors.As(err, &f); {
		case c.Directory && f.Hint == "" && f.Code == c.Exit: // It may be of a disk.
		case !ok || f.Code != c.Exit || !strings.Contains(f.Hint, c.Do):
			t.Errorf("%s: %v, exit code %d, hint %q, want exit code %d, %s", c.Name, err, f.Code, f.Hint, c.Exit, c.Do)
		}
	}
}

// A target and a file system of this machine that are full are no storage.
func TestExplain_fullElsewhere(t *testing.T) {
	t.Parallel()
	cache := &fs.PathError{Op: "write", Path: "/cache", Err: syscall.EDQUOT}
	for err, want := range map[error]string{
		errclass.Errorf(errclass.ErrTargetFull, "target: %w", syscall.EDQUOT): "it continues where it ended",
		cache: "make room there, and run the command again",
	} {
		var f *failure.Error
		if got := Explain(fmt.Errorf("do it: %w", err)); !errors.As(got, &f) || f.Code != errclass.ExitFailure ||
			!strings.HasSuffix(f.Hint, want) || strings.Contains(f.Hint, "storage") {
			t.Errorf("%v: %+v", err, f)
		}
	}
}
