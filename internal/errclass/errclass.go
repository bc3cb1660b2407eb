// Package errclass is the closed set of classes that errors have in Varve, and their one mapping to what leaves a
// process: exit codes, gRPC and HTTP codes, and condition reasons.
//
// A class is an error value, so that errors.Is finds it: wrap it with %w where its text belongs in the message, or use
// [Errorf] where it does not. A package that has a more precise error for a caller that acts on it makes it with [New].
// An error without a class is an unexpected failure. Nothing matches on the text of errors.
package errclass

import (
	"errors"
	"fmt"
)

// Class is the class of an error, and an error itself. Classes can be compared.
type Class uint8

// The classes. If an error wraps several, the first in this order is its class.
const (
	// None: an unexpected failure, or no error.
	None Class = iota
	// Unknown: the operation may have succeeded. Repeating it with the same ID finds out.
	Unknown
	// Corrupt: what is stored is not what was written. It is never retried, and never becomes another class.
	Corrupt
	// Denied: the credentials are wrong, or do not allow the operation.
	Denied
	// Conflict: the state of something, or the work of somebody else, is in the way.
	Conflict
	// Invalid: the request cannot be carried out as it is. Repeating it fails again.
	Invalid
	// NotFound: what the request names does not exist. An error while looking for it is never NotFound.
	NotFound
	// Expired: it existed, and its time is over.
	Expired
	// Exhausted: there is no space, or a quota is used up.
	Exhausted
	// Transient: the other side does not answer, or is busy. The same request may succeed later.
	Transient
)

// names holds what an error of a class says, and the reason of a condition that reports it.
var names = [...]struct{ text, reason string }{
	None: {"no class", "Failed"}, Unknown: {"outcome unknown", "Unknown"}, Corrupt: {"corrupt", "Corrupt"}, Denied: {"access denied", "Denied"},
	Conflict: {"conflict", "Conflict"}, Invalid: {"invalid", "Invalid"}, NotFound: {"not found", "NotFound"}, Expired: {"expired", "Expired"},
	Exhausted: {"no space left", "Exhausted"}, Transient: {"no answer", "Transient"},
}

// Error implements error.
func (c Class) Error() string { return names[c].text }

// All are the classes in the order in which they count.
var All = []Class{Unknown, Corrupt, Denied, Conflict, Invalid, NotFound, Expired, Exhausted, Transient}

// Of returns the class of an error, or None.
func Of(err error) Class {
	for _, c := range All {
		if errors.Is(err, c) {
			return c
		}
	}
	return None
}

// New returns an error value of a class with a text of its own. Callers find it, and its class, with errors.Is.
func New(class error, text string) error { return &classified{class: class, err: errors.New(text)} }

// Errorf returns an error of class whose text is the formatted one alone. class may be what New returned.
func Errorf(class error, format string, args ...any) error {
	return &classified{class: class, err: fmt.Errorf(format, args...)}
}

// classified is an error with a class that its text does not repeat.
type classified struct{ class, err error }

func (e *classified) Error() string   { return e.err.Error() }
func (e *classified) Unwrap() []error { return []error{e.class, e.err} }
