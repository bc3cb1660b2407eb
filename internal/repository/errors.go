package repository

import "errors"

// The classes of failure. Every error of this package that is one of them says so through errors.Is.
var (
	// ErrNotFound: there is no such repository, restore point or disk.
	ErrNotFound = errors.New("not found")
	// ErrInvalid: the request cannot be carried out as it is.
	ErrInvalid = errors.New("invalid")
	// ErrCorrupt: what is stored is not what was written. It is never retried.
	ErrCorrupt = errors.New("corrupt")
	// ErrConflict: somebody else is at it.
	ErrConflict = errors.New("conflict")
	// ErrPassword: the password does not open the repository.
	ErrPassword = errors.New("wrong password")
)
