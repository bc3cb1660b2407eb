package repositoryaccess

import (
	"context"
	"crypto/x509"
	"errors"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"slices"
	"syscall"

	"github.com/kopia/kopia/repo/blob"
	"github.com/minio/minio-go/v7"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/location"
	"github.com/varvebackup/varve/internal/repository"
	"github.com/varvebackup/varve/internal/repository/storage"
)

var (
	// ErrGone is of class NotFound: the repository that was here is not here any more.
	ErrGone = errclass.New(errclass.NotFound, "the repository is not there any more")
	// ErrNothingToRead is of class NotFound: the location is read-only, and holds no repository.
	ErrNothingToRead = errclass.New(errclass.NotFound, "there is no repository, and the location is read-only")
)

// Words are what Explain calls things by.
type Words struct {
	// Place is where it was tried.
	Place string
	// Keys and Password are where the user puts what may be wrong.
	Keys, Password string
}

// fullCodes are the codes with which S3 servers refuse an object because of space or a quota.
var fullCodes = []string{"QuotaExceeded", "XMinioStorageFull", "XMinioAdminBucketQuotaExceeded", "NoSpaceLeftOnDevice", "InsufficientCapacity"}

// Explain says what is wrong and what to do, without the secrets of the access.
func Explain(err error, a datamove.Access, w Words) string {
	text := explainRepository(err, w)
	if text == "" {
		text = explainStorage(err, a, w) + ": " + err.Error()
	}
	secrets := &Secrets{}
	secrets.Hide(a.Secrets()...)
	if a.S3 != nil {
		secrets.Hide(a.S3.AccessKey)
	}
	return secrets.Redact(text)
}

// explainRepository knows what is wrong with a repository, or with the place as a whole; "": neither.
func explainRepository(err error, w Words) string {
	var skew *SkewError
	switch {
	case errors.As(err, &skew):
		return w.Place + ": " + skew.Error()
	case errors.Is(err, repository.ErrPassword):
		return "the password does not open the repository in " + w.Place + ": put the right one into " + w.Password
	case errors.Is(err, storage.ErrReplaced):
		return "another repository has taken the place of this one in " + w.Place + ": bring this one back, or delete the BackupRepository to use the other one"
	case errors.Is(err, ErrGone):
		return "the repository is not in " + w.Place + " any more: bring it back, or delete the BackupRepository to have an empty one made"
	case errors.Is(err, ErrNothingToRead):
		return "there is no repository in " + w.Place + ", and none is made because the location is read-only"
	case errors.Is(err, repository.ErrNoBucket):
		return w.Place + ": there is no such bucket: make it, or correct spec.objectStorage.bucket"
	}
	return ""
}

// explainStorage says what the storage's own error, which follows, comes from.
func explainStorage(err error, a datamove.Access, w Words) string {
	var answer minio.ErrorResponse
	hasAnswer := errors.As(err, &answer)
	if text := explainRole(err, w); text != "" {
		return text
	}
	switch {
	case hasAnswer && answer.Code == "RequestTimeTooSkewed":
		return w.Place + ": the clock of the storage and that of the controller are too far apart: set the one that is wrong"
	case IsStorageFull(err), errors.Is(err, errclass.Exhausted):
		return w.Place + " takes no more data: make room, or raise its quota"
	case a.S3 == nil && errors.Is(err, fs.ErrPermission):
		return w.Place + ": permission denied: Varve's pods use it as user 0, without privileges: let that user, or the one that the NFS server makes of it, write there"
	case a.S3 == nil && errors.Is(err, syscall.EROFS):
		return w.Place + " is read-only: set spec.accessMode to ReadOnly, or make it writable"
	case hasAnswer && (answer.StatusCode == http.StatusForbidden || answer.StatusCode == http.StatusUnauthorized), errors.Is(err, errclass.Denied), errors.Is(err, blob.ErrInvalidCredentials):
		if a.S3 != nil && a.S3.Role != nil {
			return w.Place + " refuses the keys of " + a.S3.Role.String() + ", or does not allow them enough"
		}
		return w.Place + " refuses the keys in " + w.Keys + ", or does not allow them enough"
	case certificateRefused(err):
		return w.Place + ": the server's certificate is not trusted: put its authority's into objectStorage.caCert or caCertRef"
	case errors.Is(err, errclass.Transient), errors.Is(err, context.DeadlineExceeded), isNetwork(err):
		return w.Place + " does not answer; it is tried again"
	}
	return w.Place
}

// explainRole says why a role gave no keys, or nothing.
func explainRole(err error, w Words) string {
	var role *storage.RoleError
	switch {
	case errors.As(err, &role) && role.Refused:
		return w.Place + ": let the role trust the account system:serviceaccount:" + layout.Namespace + ":" + datamove.ServiceAccount + " of this cluster"
	case errors.As(err, &role):
		return w.Place + " is not asked, for want of keys; they are asked for again"
	case errors.Is(err, storage.ErrNoRole):
		return w.Place + ": the location names no credential, and there is no Secret " + location.DefaultCredential + ": name one in spec.credential, or a role in the annotation " + location.AnnotationRole + ", or give a role to the account " + layout.Namespace + "/" + datamove.ServiceAccount
	}
	return ""
}

// IsStorageFull says whether an error means that the storage of a repository takes no more data. A full target of a restore is another
// thing, and has the class Exhausted.
func IsStorageFull(err error) bool {
	var answer minio.ErrorResponse
	if errors.As(err, &answer) {
		return answer.StatusCode == http.StatusInsufficientStorage || slices.Contains(fullCodes, answer.Code)
	}
	return errclass.IsFull(err) && !errors.Is(err, errclass.Exhausted)
}

func certificateRefused(err error) bool {
	var unknown x509.UnknownAuthorityError
	var hostname x509.HostnameError
	var invalid x509.CertificateInvalidError
	return errors.As(err, &unknown) || errors.As(err, &hostname) || errors.As(err, &invalid)
}

func isNetwork(err error) bool {
	var request *url.Error
	return errors.As(err, &request) || errors.Is(err, os.ErrDeadlineExceeded)
}
