package repositoryaccess

import (
	"errors"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/location"
	"github.com/varvebackup/varve/internal/repository"
	"github.com/varvebackup/varve/internal/repository/storage"
	"github.com/varvebackup/varve/internal/repository/storage/advice"
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

// explainRepository knows what is wrong with a repository; "": it is the storage.
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
	}
	return ""
}

// explainStorage says what the storage's own error, which follows, comes from, and what to do.
func explainStorage(err error, a datamove.Access, w Words) string {
	found, ok := advice.For(err, storageVoice(a, w))
	if !ok {
		return w.Place
	}
	return found.What + ": " + found.Do
}

// storageVoice is what the status of an object calls things.
func storageVoice(a datamove.Access, w Words) advice.Voice {
	account := layout.Namespace + ":" + datamove.ServiceAccount
	keys := "the keys in " + w.Keys
	if a.S3 != nil && a.S3.Role != nil {
		keys = "the keys of " + a.S3.Role.String()
	}
	return advice.Voice{
		Place: w.Place, There: "there", Machine: "the controller", Keys: keys,
		GiveKeys: "the location names no credential, and there is no Secret " + location.DefaultCredential + ": name one in spec.credential, or a role in the annotation " +
			location.AnnotationRole + ", or give a role to the account " + layout.Namespace + "/" + datamove.ServiceAccount,
		Account: "the account system:serviceaccount:" + account + " of this cluster",
		Bucket:  "spec.objectStorage.bucket", Authority: "in objectStorage.caCert or caCertRef",
		Writer:      "Varve's pods, which use it as user 0 without privileges, or as the user that the NFS server makes of it,",
		SetReadOnly: "set spec.accessMode to ReadOnly", Retry: "; it is tried again",
		StorageOnly: true, Directory: a.S3 == nil,
	}
}
