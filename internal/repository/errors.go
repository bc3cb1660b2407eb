package repository

import (
	"errors"
	"fmt"
)

// These are the classes of failure. errors.Is tells which of them an error of this package belongs to, if any.
var (
	// ErrNotFound: there is no such repository, restore point or disk.
	ErrNotFound = errors.New("not found")
	// ErrInvalid: the request cannot be carried out as it is.
	ErrInvalid = errors.New("invalid")
	// ErrChangeUsed is ErrInvalid: a restore point of the history already has the Change of a request.
	ErrChangeUsed = fmt.Errorf("%w: the name of a point in time is used twice", ErrInvalid)
	// ErrCorrupt: what is stored is not what was written. It is never retried.
	ErrCorrupt = errors.New("corrupt")
	// ErrConflict: the work of somebody else is in the way.
	ErrConflict = errors.New("conflict")
	// ErrUnknown: the operation may have succeeded. Repeating it with the same ID finds out.
	ErrUnknown = errors.New("outcome unknown")
	// ErrPassword: the password does not open the repository.
	ErrPassword = errors.New("wrong password")
)
