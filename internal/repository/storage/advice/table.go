package advice

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"syscall"

	"github.com/kopia/kopia/repo/blob"
	"github.com/minio/minio-go/v7"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/storage"
)

// table holds what there is to say about each cause. The first whose errors include an error counts.
var table = []struct {
	cause    Cause
	matches  func(error, Voice) bool
	what, do string
	class    errclass.Class
}{
	{Full, isFull, "{place} takes no more data", "make room {there}, or raise its quota", errclass.Exhausted},
	{
		Clock, isClock, "{place}: its clock and that of {machine} are too far apart",
		"set the clock that is wrong, that of {machine} or that of the storage", errclass.None,
	},
	{
		NoBucket, isNoBucket, "{place}: there is no such bucket",
		"create the bucket first, or correct its name in {bucket}", errclass.NotFound,
	},
	{NoKeys, isNoKeys, "{place}: there are neither keys nor a role", "{give keys}", errclass.Denied},
	{RoleRefused, isRoleRefused, "{place}: the role gives no keys", "let the role trust {account}", errclass.Denied},
	{
		RoleSilent, isRoleSilent, "{place} is not asked: there are no keys yet",
		"check that the role's security token service answers{retry}", errclass.Transient,
	},
	{Permission, isPermission, "{place}: permission denied", "let {writer} write there", errclass.Denied},
	{ReadOnly, isReadOnly, "{place} is read-only", "{set read-only}, or make it writable", errclass.None},
	{
		Denied, isDenied, "{place} refuses {keys}, or does not allow them enough",
		"check the keys and their permissions in the bucket{keys source}", errclass.Denied,
	},
	{
		Certificate, isCertificate, "{place}: the server's certificate is not trusted",
		"give the certificate of the server's authority {authority}", errclass.Transient,
	},
	{
		Silent, isSilent, "{place} does not answer",
		"check that the storage answers at its address{set address}{retry}",
		errclass.Transient,
	},
}

func isFull(err error, _ Voice) bool { return errors.Is(err, storage.ErrFull) }

func isClock(err error, _ Voice) bool {
	answer, ok := answerOf(err)
	return ok && answer.Code == storage.CodeClock
}

func isNoBucket(err error, _ Voice) bool {
	answer, ok := answerOf(err)
	return errors.Is(err, storage.ErrNoBucket) || ok && answer.Code == minio.NoSuchBucket
}

func isNoKeys(err error, _ Voice) bool { return errors.Is(err, storage.ErrNoRole) }

func isRoleRefused(err error, _ Voice) bool {
	var role *storage.RoleError
	return errors.As(err, &role) && role.Refused
}

func isRoleSilent(err error, _ Voice) bool {
	var role *storage.RoleError
	return errors.As(err, &role) && !role.Refused
}

func isPermission(err error, v Voice) bool {
	return v.StorageOnly && v.Directory && errors.Is(err, fs.ErrPermission)
}

func isReadOnly(err error, v Voice) bool {
	return v.StorageOnly && v.Directory && errors.Is(err, syscall.EROFS)
}

// isDenied leaves the answer alone if the error has a class: what was done says more than why.
func isDenied(err error, v Voice) bool {
	answer, ok := answerOf(err)
	refused := ok && (v.StorageOnly || errclass.Of(err) == errclass.None) &&
		(answer.StatusCode == http.StatusForbidden || answer.StatusCode == http.StatusUnauthorized)
	return refused || errors.Is(err, errclass.Denied) || errors.Is(err, blob.ErrInvalidCredentials)
}

func isCertificate(err error, _ Voice) bool {
	var verification *tls.CertificateVerificationError
	var unknown x509.UnknownAuthorityError
	var hostname x509.HostnameError
	var invalid x509.CertificateInvalidError
	return errors.As(err, &verification) || errors.As(err, &unknown) || errors.As(err, &hostname) ||
		errors.As(err, &invalid)
}

// isSilent leaves errors of the network alone if they have another class: an address that makes no sense is an url.Error, too.
func isSilent(err error, v Voice) bool {
	var request *url.Error
	var network *net.OpError
	class := errclass.Of(err)
	if errors.Is(err, storage.ErrUnreachable) {
		return true
	}
	if (v.StorageOnly || class == errclass.None || class == errclass.Transient) &&
		(errors.As(err, &request) || errors.As(err, &network)) {
		return true
	}
	return v.StorageOnly && (errors.Is(err, errclass.Transient) || errors.Is(err, context.DeadlineExceeded) ||
		errors.Is(err, os.ErrDeadlineExceeded))
}

// answerOf returns what an S3 server has answered.
func answerOf(err error) (answer minio.ErrorResponse, ok bool) {
	ok = errors.As(err, &answer)
	return answer, ok
}
