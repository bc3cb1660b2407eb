package repoaccess

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"syscall"

	"github.com/minio/minio-go/v7"

	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/disk"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/mover"
	"github.com/varvebackup/varve/internal/repository"
	"github.com/varvebackup/varve/internal/repository/storage"
)

const (
	deniedHint      = "check the keys and their permissions in the bucket: `varve repo connect` takes them from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or --s3-credentials-file"
	locationHint    = "check the location, and that its file system is mounted; `varve repo connect` selects another one"
	unreachableHint = "check that the storage answers at this address; `varve repo connect` changes the address"
)

// repositoryHints are what a user can do about errors of disks and of the repository. The first that an error is counts.
var repositoryHints = []struct {
	is   error
	hint string
}{
	{disk.ErrInUse, "`--ignore-locks` reads a raw file or device anyway; use it only if nothing writes to the disk and no data is left in a cache"},
	{disk.ErrBacking, "`--backing FORMAT:PATH` allows a backing file; give it once for each file of the chain"},
	{disk.ErrHasContent, "`--overwrite` overwrites the content of the target"},
	{disk.ErrLargerTarget, "`--larger` accepts a larger target"},
	{disk.ErrNotFound, ""},
	{disk.ErrUnreachable, "check that the NBD server runs and listens at this address"},
	{repository.ErrPassword, "give the repository's password, the newest one if it was changed: --password-file, or VARVE_PASSWORD; it cannot be recovered"},
	{repository.ErrNoBucket, "create the bucket first, or check its name"},
	{repository.ErrUnreachable, unreachableHint},
	{repository.ErrChangeUsed, "give --checkpoint a new name, from `varve disk checkpoint`, or let Varve name it: --track"},
	{errclass.Unknown, "`varve disk list` shows whether the restore point is there"},
	{errclass.Corrupt, "`varve repo check` lists the damaged restore points; the others can be restored. `varve repo repair` repairs everything but data"},
	{errclass.Denied, deniedHint},
	{errclass.Conflict, ""},
	{errclass.Invalid, ""},
	{errclass.NotFound, "`varve disk list` shows the restore points"},
	{errclass.Expired, ""},
	{errclass.Exhausted, "make space and run the same command again: it continues where it ended"},
}

// Explain gives an error of the repository its exit code and its hint. Other errors stay as they are.
func Explain(err error) error {
	var f *failure.Error
	if err == nil || errors.As(err, &f) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if errors.Is(err, mover.ErrPrefix) || errors.Is(err, disk.ErrArgument) {
		return &failure.Error{Err: err, Code: errclass.ExitUsage}
	}
	for _, h := range repositoryHints {
		if errors.Is(err, h.is) {
			return &failure.Error{Err: err, Code: errclass.ExitCode(err), Hint: h.hint}
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return &failure.Error{Err: err, Code: errclass.ExitNotFound, Hint: locationHint}
	}
	return explainStorage(err)
}

// explainOpen is Explain for a repository that cannot be opened as if it did not exist.
func explainOpen(err error) error {
	if errors.Is(err, errclass.NotFound) && !errors.Is(err, repository.ErrNoBucket) {
		return &failure.Error{Err: err, Code: errclass.ExitNotFound, Hint: locationHint}
	}
	return Explain(err)
}

// explainStorage classifies the other errors: a full file system, and what S3 or the way to it said.
func explainStorage(err error) *failure.Error {
	var path *fs.PathError
	if errors.Is(err, syscall.ENOSPC) && errors.As(err, &path) {
		return &failure.Error{
			Err: fmt.Errorf("write %s: %w", path.Path, syscall.ENOSPC), Code: errclass.ExitFailure,
			Hint: "make space there and run the command again: no incomplete restore point is kept",
		}
	}
	var answer minio.ErrorResponse
	var certificate *tls.CertificateVerificationError
	var request *url.Error
	var network *net.OpError
	switch {
	case errors.As(err, &answer) && answer.Code == storage.CodeClock:
		return &failure.Error{Err: err, Code: errclass.ExitFailure, Hint: "set the clock: that of this machine and that of the storage are too far apart"}
	case errors.As(err, &answer) && (answer.StatusCode == http.StatusForbidden || answer.StatusCode == http.StatusUnauthorized):
		return &failure.Error{Err: err, Code: errclass.ExitRefused, Hint: deniedHint}
	case errors.As(err, &answer) && answer.Code == minio.NoSuchBucket:
		return &failure.Error{Err: err, Code: errclass.ExitNotFound, Hint: "create the bucket first, or check its name"}
	case errors.As(err, &certificate):
		return &failure.Error{Err: err, Code: errclass.ExitUnreachable, Hint: "give the certificate of the server's authority with `varve repo connect --s3-ca-file`"}
	case errors.As(err, &request), errors.As(err, &network):
		return &failure.Error{Err: err, Code: errclass.ExitUnreachable, Hint: unreachableHint}
	default:
		return &failure.Error{Err: err, Code: errclass.ExitFailure}
	}
}
