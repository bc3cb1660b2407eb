package moverpod

import (
	"errors"
	"io/fs"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/repository"
	"github.com/varvebackup/varve/internal/repository/storage"
	"github.com/varvebackup/varve/internal/repository/storage/advice"
)

// lastingError is a failure that would come again. Every other error may pass.
type lastingError struct {
	err    error
	advice string
}

func (e *lastingError) Error() string {
	if e.advice == "" {
		return e.err.Error()
	}
	return e.err.Error() + ": " + e.advice
}

func (e *lastingError) Unwrap() error { return e.err }

// lasting makes an error that would come again. The advice says what to do, in the imperative; "": err says so.
func lasting(err error, advice string) error { return &lastingError{err: err, advice: advice} }

// storageVoice is what the report of a mover pod calls things.
var storageVoice = advice.Voice{
	Place: "the storage of the backup location", There: "there", Machine: "the node", Keys: "its credentials",
	GiveKeys:  "name a credential in the backup location",
	Account:   "the account that movers run as (" + layout.Namespace + "/" + datamove.ServiceAccount + ")",
	Bucket:    "spec.objectStorage.bucket of the backup location",
	Authority: "in objectStorage.caCert or caCertRef of the backup location",
	Writer:    "Varve's pods, which use it as user 0,", SetReadOnly: "set spec.accessMode to ReadOnly",
	Retry: "; it is tried again",
}

// judge returns the error of a job of the repository or of a disk as one that lasts, if it does. Conflicts pass: maintenance ends, and a
// device is let go of. What is not found during a job was found before, and may be made again.
func judge(err error) error {
	var lasts *lastingError
	switch class := errclass.Of(err); {
	case err == nil || errors.As(err, &lasts):
		return err
	case errors.Is(err, repository.ErrPassword):
		return lasting(err, "if the repository's password was changed, put it into the Secret of the repository")
	case errors.Is(err, storage.ErrGivenUp):
		return lasting(err, "bring the storage of the backup location back, and start this again")
	case errors.Is(err, storage.ErrFull), class == errclass.Denied:
		a, _ := advice.For(err, storageVoice)
		return lasting(err, a.What+": "+a.Do)
	case class == errclass.Corrupt:
		return lasting(err, "`varve repo check` says what is damaged, and what to do")
	case class == errclass.Exhausted:
		return lasting(err, "")
	case class == errclass.Invalid, class == errclass.Expired:
		return lasting(err, "")
	}
	return err
}

// judgeAbsence is judge for a step at whose end something that is not found stays that way.
func judgeAbsence(err error, advice string) error {
	if errclass.Of(err) == errclass.NotFound || errors.Is(err, fs.ErrNotExist) {
		return lasting(err, advice)
	}
	return judge(err)
}
