package repositoryaccess

import (
	"context"
	"crypto/x509"
	"errors"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/kopia/kopia/repo/blob"
	"github.com/minio/minio-go/v7"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/errclass"
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
	var answer minio.ErrorResponse
	var skew *SkewError
	hasAnswer := errors.As(err, &answer)
	detail := ": " + err.Error()
	var text string
	switch {
	case errors.As(err, &skew):
		text = w.Place + ": " + skew.Error()
	case hasAnswer && answer.Code == "RequestTimeTooSkewed":
		text = w.Place + ": the clock of the storage and that of the controller are too far apart: set the one that is wrong" + detail
	case errors.Is(err, repository.ErrPassword):
		text = "the password does not open the repository in " + w.Place + ": put the right one into " + w.Password
	case errors.Is(err, storage.ErrReplaced):
		text = "another repository has taken the place of this one in " + w.Place + ": bring this one back, or delete the BackupRepository to use the other one"
	case errors.Is(err, ErrGone):
		text = "the repository is not in " + w.Place + " any more: bring it back, or delete the BackupRepository to have an empty one made"
	case errors.Is(err, ErrNothingToRead):
		text = "there is no repository in " + w.Place + ", and none is made because the location is read-only"
	case errors.Is(err, repository.ErrNoBucket):
		text = w.Place + ": there is no such bucket: make it, or correct spec.objectStorage.bucket"
	case storageFull(err):
		text = w.Place + " takes no more data: make room, or raise its quota" + detail
	case hasAnswer && (answer.StatusCode == http.StatusForbidden || answer.StatusCode == http.StatusUnauthorized), errors.Is(err, errclass.Denied), errors.Is(err, blob.ErrInvalidCredentials):
		text = w.Place + " refuses the keys in " + w.Keys + ", or does not allow them enough" + detail
	case certificateRefused(err):
		text = w.Place + ": the server's certificate is not trusted: put its authority's into objectStorage.caCert or caCertRef" + detail
	case errors.Is(err, errclass.Transient), errors.Is(err, context.DeadlineExceeded), isNetwork(err):
		text = w.Place + " does not answer; it is tried again" + detail
	default:
		text = w.Place + detail
	}
	return redact(text, a)
}

func storageFull(err error) bool {
	var answer minio.ErrorResponse
	if errors.As(err, &answer) {
		return answer.StatusCode == http.StatusInsufficientStorage || slices.Contains(fullCodes, answer.Code)
	}
	return errclass.IsFull(err) || errors.Is(err, errclass.Exhausted)
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

// redact replaces the secrets of an access in a text: errors of libraries may hold what they were given.
func redact(text string, a datamove.Access) string {
	secrets := []string{a.Password}
	if a.S3 != nil {
		secrets = append(secrets, a.S3.AccessKey, a.S3.SecretKey, a.S3.SessionToken)
	}
	for _, s := range secrets {
		if s == "" {
			continue
		}
		for _, form := range []string{s, url.QueryEscape(s), url.PathEscape(s)} {
			text = strings.ReplaceAll(text, form, "[hidden]")
		}
	}
	return text
}
