package storage

import "github.com/varvebackup/varve/internal/errclass"

// Errors have the classes of errclass. These are the errors that a caller answers in a way of its own.
var (
	// ErrUnreachable is of class Transient: the storage does not answer.
	ErrUnreachable = errclass.New(errclass.Transient, "no answer")
	// ErrNoBucket is of class NotFound: the storage has no bucket of this name.
	ErrNoBucket = errclass.New(errclass.NotFound, "not found: no such bucket")
)
