package repository

import (
	"errors"
	"fmt"
)

// The classes of failure. Every error of this package that is one of them says so through errors.Is.
var (
	// ErrNotFound: there is no such repository, restore point or disk.
	ErrNotFound = errors.New("not found")
	// ErrInvalid: the request cannot be carried out as it is.
	ErrInvalid = errors.New("invalid")
	// ErrChangeUsed is ErrInvalid: a restore point of the history has the Change of a request already.
	ErrChangeUsed = fmt.Errorf("%w: the name of a point in time is used twice", ErrInvalid)
	// ErrCorrupt: what is stored is not what was written. It is never retried.
	ErrCorrupt = errors.New("corrupt")
	// ErrConflict: somebody else is at it.
	ErrConflict = errors.New("conflict")
	// ErrUnknown: it may have been done. Whoever repeats it, with the same ID, finds out.
	ErrUnknown = errors.New("outcome unknown")
	// ErrPassword: the password does not open the repository.
	ErrPassword = errors.New("wrong password")
)
