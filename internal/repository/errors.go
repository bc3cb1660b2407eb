package repository

import (
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/internal/repository/storage"
)

// Errors have the classes of errclass. These are the errors that a caller answers in a way of its own.
var (
	// ErrChangeUsed is of class Invalid: a restore point of the history already has the Change of a request.
	ErrChangeUsed = errclass.New(errclass.Invalid, "invalid: the name of a point in time is used twice")
	// ErrPassword is of class Denied: the password does not open the repository.
	ErrPassword = engine.ErrPassword
	// ErrUnreachable is of class Transient: the storage does not answer.
	ErrUnreachable = storage.ErrUnreachable
	// ErrNoPoint is of class NotFound, and ErrPinned of class Conflict: Delete has read the repository, and the restore point is not there, or
	// is pinned. The classes alone may say something of the repository.
	ErrNoPoint = errclass.New(errclass.NotFound, "not found: no such restore point")
	ErrPinned  = errclass.New(errclass.Conflict, "conflict: the restore point is pinned")
	// ErrNoBucket is of class NotFound: the storage has no bucket of this name.
	ErrNoBucket = storage.ErrNoBucket
)
