package storage

import "github.com/varvebackup/varve/internal/errclass"

// Errors have the classes of errclass. These are the errors that a caller answers in a way of its own.
var (
	// ErrUnreachable is of class Transient: the storage does not answer.
	ErrUnreachable = errclass.New(errclass.Transient, "no answer")
	// ErrFull is of class Exhausted: the storage takes no more data, for want of space or because of a quota.
	ErrFull = errclass.New(errclass.Exhausted, "the storage takes no more data")
	// ErrNoBucket is of class NotFound: the storage has no bucket of this name.
	ErrNoBucket = errclass.New(errclass.NotFound, "not found: no such bucket")
)
