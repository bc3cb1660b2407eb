// Package advicetest has an error for everything that package advice knows, so that whoever shows an advice is tested with all of them.
package advicetest

import (
	"context"
	"crypto/x509"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"syscall"

	"github.com/kopia/kopia/repo/blob"
	"github.com/minio/minio-go/v7"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/storage"
	"github.com/varvebackup/varve/internal/repository/storage/advice"
)

// Case is an error of a storage, and what everybody says about it.
type Case struct {
	Name string
	Err  error
	// Cause, What and Do: What and Do are a part of each.
	Cause    advice.Cause
	What, Do string
	// Exit is the exit code of a command.
	Exit int
	// Lasts says that trying again does not help.
	Lasts bool
	// Directory says that the error is known for one of a storage only where nothing but a directory can fail.
	Directory bool
}

// Cases returns the cases, in which each cause is at least once.
func Cases() []Case {
	role := storage.Role{ARN: "arn:aws:iam::1:role/r", STS: "https://sts.lan"}
	refused := &url.Error{Op: "Get", URL: "http://x", Err: &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}}
	unknown := &url.Error{Op: "Get", URL: "https://x", Err: x509.UnknownAuthorityError{}}
	full := func(name string, err error) Case {
		return Case{
			Name: name, Err: errorOfPut(err), Cause: advice.Full, What: "takes no more data", Do: "make room",
			Exit: errclass.ExitFailure, Lasts: true,
		}
	}
	denied := func(name string, err error, lasts bool) Case {
		return Case{
			Name: name, Err: err, Cause: advice.Denied, What: "refuses", Do: "check the keys",
			Exit: errclass.ExitRefused, Lasts: lasts,
		}
	}
	clock := func(name string, status int) Case {
		return Case{
			Name: name, Err: errorOfPut(s3Error(status, storage.CodeClock)), Cause: advice.Clock,
			What: "too far apart", Do: "set the clock", Exit: errclass.ExitFailure,
		}
	}
	bucket := func(name string, err error) Case {
		return Case{
			Name: name, Err: err, Cause: advice.NoBucket, What: "there is no such bucket",
			Do: "create the bucket first", Exit: errclass.ExitNotFound,
		}
	}
	silent := func(name string, err error) Case {
		return Case{
			Name: name, Err: err, Cause: advice.Silent, What: "does not answer",
			Do: "check that the storage answers", Exit: errclass.ExitUnreachable,
		}
	}
	return []Case{
		full("file system", &fs.PathError{Op: "write", Path: "/x", Err: syscall.ENOSPC}),
		full("quota of a directory", &fs.PathError{Op: "write", Path: "/x", Err: syscall.EDQUOT}),
		full("MinIO", s3Error(http.StatusInsufficientStorage, "XMinioStorageFull")),
		full("MinIO, by its code", s3Error(http.StatusInternalServerError, "XMinioStorageFull")),
		full("quota of a bucket", s3Error(http.StatusForbidden, "QuotaExceeded")),
		full("quota of a bucket of MinIO", s3Error(http.StatusBadRequest, "XMinioAdminBucketQuotaExceeded")),
		full("no space on a device", s3Error(http.StatusInternalServerError, "NoSpaceLeftOnDevice")),
		full("capacity", s3Error(http.StatusServiceUnavailable, "InsufficientCapacity")),
		full("any code", s3Error(http.StatusInsufficientStorage, "InsufficientStorage")),
		clock("clock", http.StatusForbidden),
		clock("clock, by its code", http.StatusBadRequest),
		bucket("no bucket", fmt.Errorf("open: %w", storage.ErrNoBucket)),
		bucket("no bucket any more", errorOfPut(s3Error(http.StatusNotFound, minio.NoSuchBucket))),
		{
			Name: "no keys", Err: storage.ErrNoRole, Cause: advice.NoKeys, What: "neither keys nor a role",
			Do:   "a role",
			Exit: errclass.ExitRefused, Lasts: true,
		},
		{
			Name: "role", Err: &storage.RoleError{Role: role, Refused: true, Text: "AccessDenied: no"},
			Cause: advice.RoleRefused, What: "the role gives no keys", Do: "let the role trust",
			Exit: errclass.ExitRefused, Lasts: true,
		},
		{
			Name: "silent STS", Err: &storage.RoleError{Role: role, Text: "connection refused"},
			Cause: advice.RoleSilent, What: "is not asked: there are no keys yet", Do: "security token service answers",
			Exit: errclass.ExitUnreachable,
		},
		{
			Name: "permission", Err: errorOfPut(&fs.PathError{Op: "open", Path: "/x", Err: syscall.EACCES}),
			Directory: true,
			Cause:     advice.Permission, What: "permission denied", Do: "write there", Exit: errclass.ExitFailure,
		},
		{
			Name: "read-only", Err: errorOfPut(&fs.PathError{Op: "open", Path: "/x", Err: syscall.EROFS}),
			Directory: true,
			Cause:     advice.ReadOnly, What: "is read-only", Do: "make it writable", Exit: errclass.ExitFailure,
		},
		denied("denied", fmt.Errorf("open: %w", errclass.Denied), true),
		denied("denied to a request", errorOfPut(s3Error(http.StatusForbidden, "AccessDenied")), false), // New keys may be there already.
		denied("unknown key", errorOfPut(blob.ErrInvalidCredentials), false),
		{
			Name: "certificate", Err: errorOfPut(unknown), Cause: advice.Certificate,
			What: "certificate is not trusted", Do: "give the certificate of the server's authority",
			Exit: errclass.ExitUnreachable,
		},
		silent("silent", fmt.Errorf("%w from x within 30s", storage.ErrUnreachable)),
		silent("connection refused", errorOfPut(refused)),
	}
}

func s3Error(status int, code string) error {
	return minio.ErrorResponse{StatusCode: status, Code: code, Message: code}
}

// refusing is a storage that takes no blob.
type refusing struct {
	blob.Storage

	err error
}

func (s refusing) PutBlob(context.Context, blob.ID, blob.Bytes, blob.PutOptions) error { return s.err }

// errorOfPut returns the error of a storage whose file system or server fails with err.
func errorOfPut(err error) error {
	st := storage.MarkFull(refusing{err: err})
	return fmt.Errorf("store blob p1: %w", st.PutBlob(context.Background(), "p1", storage.Bytes("data"),
		blob.PutOptions{}))
}
