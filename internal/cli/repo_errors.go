package cli

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"net/url"

	"github.com/varvebackup/varve/internal/repository"
)

// repositoryClasses are the classes of repository errors, the gravest first: an error may be several.
var repositoryClasses = []struct {
	is   error
	code int
	hint string
}{
	{repository.ErrPassword, CodeRefused, "give the password that the repository was created with: --password-file, or VARVE_PASSWORD; it cannot be recovered"},
	{repository.ErrCorrupt, CodeFailure, "`varve repo check` names the restore points that damage touches; the others can be restored"},
	{repository.ErrConflict, CodeRefused, ""},
	{repository.ErrInvalid, CodeRefused, ""},
	{repository.ErrNotFound, CodeNotFound, "`varve disk list` shows the restore points that are there"},
	{fs.ErrNotExist, CodeNotFound, "check the location, and that its file system is mounted; `varve repo connect` selects another one"},
}

// repositoryFailure gives an error of the repository its exit code and its hint. Other errors stay as they are.
func repositoryFailure(err error) error {
	var f *failure
	if err == nil || errors.As(err, &f) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	for _, c := range repositoryClasses {
		if errors.Is(err, c.is) {
			return &failure{err: err, code: c.code, hint: c.hint}
		}
	}
	var request *url.Error
	var network *net.OpError
	if errors.As(err, &request) || errors.As(err, &network) {
		return &failure{err: err, code: CodeUnreachable, hint: "check that the storage answers at this address: `varve repo connect` changes it"}
	}
	return &failure{err: err, code: CodeFailure}
}
