package repoaccess

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/disk"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/mover"
	"github.com/varvebackup/varve/internal/repository"
	"github.com/varvebackup/varve/internal/repository/storage/advice"
)

const locationHint = "check the location, and that its file system is mounted; `varve repo connect` selects another one"

// storageVoice is what hints call things. A hint stands below the error, and says only what to do.
var storageVoice = advice.Voice{
	Place: "the storage", There: "in the storage", Machine: "this machine", Keys: "the keys",
	KeysSource: ": `varve repo connect` takes them from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, --s3-credentials-file or --s3-role",
	GiveKeys:   "give keys to `varve repo connect`, or a role with --s3-role",
	Account:    "the account of this machine, container or service account", Bucket: "the location",
	Authority: "with `varve repo connect --s3-ca-file`", Writer: "this user",
	SetReadOnly: "give `varve repo connect` the flag --read-only",
	SetAddress:  "; `varve repo connect` changes the address",
}

// firstHints are what a user can do about errors of disks and of the repository, whatever else the storage says. The first that an error is
// counts.
var firstHints = []hint{
	{disk.ErrInUse, "`--ignore-locks` reads a raw file or device anyway; use it only if nothing writes to the disk and no data is left in a cache"},
	{disk.ErrBacking, "`--backing FORMAT:PATH` allows a backing file; give it once for each file of the chain"},
	{disk.ErrHasContent, "`--overwrite` overwrites the content of the target"},
	{disk.ErrLargerTarget, "`--larger` accepts a larger target"},
	{disk.ErrNotFound, ""},
	{disk.ErrUnreachable, "check that the NBD server runs and listens at this address"},
	{repository.ErrPassword, "give the repository's password, the newest one if it was changed: --password-file, or VARVE_PASSWORD; it cannot be recovered"},
	{repository.ErrChangeUsed, "give --checkpoint a new name, from `varve disk checkpoint`, or let Varve name it: --track"},
	{errclass.Unknown, "`varve disk list` shows whether the restore point is there"},
	{errclass.Corrupt, "`varve repo check` lists the damaged restore points; the others can be restored. `varve repo repair` repairs everything but data"},
	{errclass.ErrTargetFull, "make space and run the same command again: it continues where it ended"},
}

// lastHints are for errors of which the storage says nothing.
var lastHints = []hint{
	{errclass.Conflict, ""},
	{errclass.Invalid, ""},
	{errclass.NotFound, "`varve disk list` shows the restore points"},
	{errclass.Expired, ""},
}

// hint is what a user can do about an error.
type hint struct {
	is   error
	text string
}

// hintFor returns the error with the hint of the first of all that it is, or nil.
func hintFor(err error, all []hint) error {
	for _, h := range all {
		if errors.Is(err, h.is) {
			return &failure.Error{Err: err, Code: errclass.ExitCode(err), Hint: h.text}
		}
	}
	return nil
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
	if explained := hintFor(err, firstHints); explained != nil {
		return explained
	}
	if a, ok := advice.For(err, storageVoice); ok {
		return explainStorage(err, a)
	}
	if explained := hintFor(err, lastHints); explained != nil {
		return explained
	}
	if errors.Is(err, fs.ErrNotExist) {
		return &failure.Error{Err: err, Code: errclass.ExitNotFound, Hint: locationHint}
	}
	return explainOther(err)
}

// explainOpen is Explain for a repository that cannot be opened as if it did not exist.
func explainOpen(err error) error {
	if errors.Is(err, errclass.NotFound) && !errors.Is(err, repository.ErrNoBucket) {
		return &failure.Error{Err: err, Code: errclass.ExitNotFound, Hint: locationHint}
	}
	return Explain(err)
}

// explainStorage gives an error of the storage its exit code, and the advice as its hint.
func explainStorage(err error, a advice.Advice) *failure.Error {
	f := &failure.Error{Err: err, Code: errclass.ExitCode(a.Class), Hint: a.Do}
	if a.Cause == advice.Full {
		f.Err, f.Hint = shortenFull(err), a.Do+", and run the command again: no incomplete restore point is kept"
	}
	return f
}

// explainOther explains the errors that do not come from the storage, such as a full file system under the cache.
func explainOther(err error) *failure.Error {
	f := &failure.Error{Err: err, Code: errclass.ExitFailure}
	if errclass.IsFull(err) {
		f.Err, f.Hint = shortenFull(err), "make room there, and run the command again"
	}
	return f
}

// shortenFull returns the error of a full file system with the file's path, and without what was done to come there.
func shortenFull(err error) error {
	var path *fs.PathError
	if !errors.As(err, &path) || !errclass.IsFull(path.Err) {
		return err
	}
	return fmt.Errorf("write %s: %w", path.Path, path.Err)
}
