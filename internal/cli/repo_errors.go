package cli

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

	"github.com/varvebackup/varve/internal/disk"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository"
)

const (
	deniedHint      = "check the keys, and what they may do in the bucket: `varve repo connect` takes them from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or --s3-credentials-file"
	locationHint    = "check the location, and that its file system is mounted; `varve repo connect` selects another one"
	unreachableHint = "check that the storage answers at this address: `varve repo connect` changes it"
)

// repositoryClasses are the classes of errors of disks and of the repository. If an error has several, the first
// counts.
var repositoryClasses = []struct {
	is   error
	code int
	hint string
}{
	{disk.ErrNotFound, errclass.ExitNotFound, ""},
	{disk.ErrInUse, errclass.ExitRefused, "`--ignore-locks` reads a raw file or device all the same, if you know that nothing is written to it now, and that everything was"},
	{disk.ErrBacking, errclass.ExitRefused, "`--backing FORMAT:PATH`, once for each file of the chain, allows them"},
	{disk.ErrUnreachable, errclass.ExitUnreachable, "check that the NBD server runs, and listens at this address"},
	{errclass.Exhausted, errclass.ExitFailure, "what an interrupted restore has finished stays: when there is space, the same command goes on"},
	{errclass.Unknown, errclass.ExitFailure, "`varve disk list` shows whether the restore point is there"},
	{repository.ErrPassword, errclass.ExitRefused, "give the password that the repository was created with: --password-file, or VARVE_PASSWORD; it cannot be recovered"},
	{repository.ErrNoBucket, errclass.ExitNotFound, "create the bucket first, or check its name"},
	{errclass.Denied, errclass.ExitRefused, deniedHint},
	{repository.ErrUnreachable, errclass.ExitUnreachable, unreachableHint},
	{errclass.Corrupt, errclass.ExitFailure, "`varve repo check` names the restore points that damage touches, the others can be restored; `varve repo repair` mends what is not data"},
	{repository.ErrChangeUsed, errclass.ExitRefused, "give --checkpoint a new name, from `varve disk checkpoint`, or let Varve name it: --track"},
	{errclass.Conflict, errclass.ExitRefused, ""},
	{errclass.Invalid, errclass.ExitRefused, ""},
	{errclass.NotFound, errclass.ExitNotFound, "`varve disk list` shows the restore points that are there"},
	{fs.ErrNotExist, errclass.ExitNotFound, locationHint},
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
	return storageFailure(err)
}

// openFailure is repositoryFailure for a repository that cannot be opened as if it did not exist.
func openFailure(err error) error {
	if errors.Is(err, errclass.NotFound) && !errors.Is(err, repository.ErrNoBucket) {
		return &failure{err: err, code: errclass.ExitNotFound, hint: locationHint}
	}
	return repositoryFailure(err)
}

// storageFailure classifies the other errors: a full file system, and what S3 or the way to it said.
func storageFailure(err error) *failure {
	var path *fs.PathError
	if errors.Is(err, syscall.ENOSPC) && errors.As(err, &path) {
		return &failure{
			err: fmt.Errorf("write %s: %w", path.Path, syscall.ENOSPC), code: errclass.ExitFailure,
			hint: "make space there and start it again: a backup is there as a whole, or not at all",
		}
	}
	var answer minio.ErrorResponse
	var certificate *tls.CertificateVerificationError
	var request *url.Error
	var network *net.OpError
	switch {
	case errors.As(err, &answer) && (answer.StatusCode == http.StatusForbidden || answer.StatusCode == http.StatusUnauthorized):
		return &failure{err: err, code: errclass.ExitRefused, hint: deniedHint}
	case errors.As(err, &answer) && answer.Code == minio.NoSuchBucket:
		return &failure{err: err, code: errclass.ExitNotFound, hint: "create the bucket first, or check its name"}
	case errors.As(err, &certificate):
		return &failure{err: err, code: errclass.ExitUnreachable, hint: "give the certificate of the server's authority: --s3-ca-file of `varve repo connect`"}
	case errors.As(err, &request), errors.As(err, &network):
		return &failure{err: err, code: errclass.ExitUnreachable, hint: unreachableHint}
	default:
		return &failure{err: err, code: errclass.ExitFailure}
	}
}
