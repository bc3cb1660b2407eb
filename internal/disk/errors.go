package disk

import (
	"errors"

	"github.com/varvebackup/varve/internal/errclass"
)

// Errors have the classes of errclass: Invalid for a request that makes no sense or does not fit the disk, Conflict for a
// target with content and for what something else uses, errclass.ErrTargetFull for a full file system. These are the errors that a
// caller answers in a way of its own.
var (
	// ErrNotFound is of class NotFound: the disk, its bitmap, or the program that reads it does not exist.
	ErrNotFound = errclass.New(errclass.NotFound, "not found")
	// ErrUnreachable is of class Transient: no NBD server answers at the address.
	ErrUnreachable = errclass.New(errclass.Transient, "no answer")
	// ErrInUse is of class Conflict: something else uses the disk that is to be read.
	ErrInUse = errclass.New(errclass.Conflict, "conflict: in use")
	// ErrBacking is of class Invalid: a qcow2 image names a backing file that the caller did not.
	ErrBacking = errclass.New(errclass.Invalid, "invalid: backing file")
	// ErrHasContent is of class Conflict: the target has content, or may have some, and TargetOptions.Overwrite is not set.
	ErrHasContent = errclass.New(errclass.Conflict, "conflict: has content")
	// ErrLargerTarget is of class Invalid: the target is larger than the disk, and TargetOptions.Larger is not set.
	ErrLargerTarget = errclass.New(errclass.Invalid, "invalid: larger than the disk")
	// ErrArgument is of class Invalid: the location is not that of a disk, or does not take the options.
	ErrArgument = errclass.New(errclass.Invalid, "invalid: argument")
	// ErrChanged: the disk is no longer the one that was opened.
	ErrChanged = errors.New("changed while it was read")
)
