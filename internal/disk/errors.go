package disk

import (
	"errors"
	"fmt"
)

// The classes of errors. errors.Is finds the class of an error of this package, if it has one.
var (
	// ErrInvalid: the request makes no sense, or does not fit the disk.
	ErrInvalid = errors.New("invalid")
	// ErrNotFound: the disk, its bitmap, or the program that reads it does not exist.
	ErrNotFound = errors.New("not found")
	// ErrConflict: the target has content, or something else uses the disk.
	ErrConflict = errors.New("conflict")
	// ErrNoSpace: there is no room for the data.
	ErrNoSpace = errors.New("no space")
	// ErrUnreachable: no NBD server answers at the address.
	ErrUnreachable = errors.New("no answer")
	// ErrInUse: something else uses the disk that is to be read. It is also an ErrConflict.
	ErrInUse = fmt.Errorf("%w: in use", ErrConflict)
	// ErrBacking: a qcow2 image names a backing file that the caller did not. It is also an ErrInvalid.
	ErrBacking = fmt.Errorf("%w: backing file", ErrInvalid)
	// ErrChanged: the disk is no longer the one that was opened.
	ErrChanged = errors.New("changed while it was read")
)

// errorf returns an error of a class.
func errorf(class error, format string, args ...any) error {
	return &classified{class: class, err: fmt.Errorf(format, args...)}
}

// classified is an error with a class that its text does not repeat.
type classified struct{ class, err error }

func (e *classified) Error() string   { return e.err.Error() }
func (e *classified) Unwrap() []error { return []error{e.class, e.err} }

// classOf returns the class of an error, or nil.
func classOf(err error) error {
	for _, class := range []error{ErrInvalid, ErrNotFound, ErrConflict, ErrNoSpace, ErrUnreachable, ErrChanged} {
		if errors.Is(err, class) {
			return class
		}
	}
	return nil
}
