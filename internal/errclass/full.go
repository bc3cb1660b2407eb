package errclass

import (
	"errors"
	"slices"
	"syscall"
)

// FullErrnos are the errors of a file system that takes no more data: it is full, or the user's quota is. They have no
// class by themselves: what is full, and what to do about it, is for the caller to say.
var FullErrnos = []error{syscall.ENOSPC, syscall.EDQUOT}

// ErrTargetFull is of class Exhausted: what data is restored to takes no more of it. A repository's storage that takes no more
// is storage.ErrFull.
var ErrTargetFull = New(Exhausted, "no space is left in the target")

// IsFull reports whether an error means that a file system takes no more data.
func IsFull(err error) bool {
	return slices.ContainsFunc(FullErrnos, func(full error) bool { return errors.Is(err, full) })
}
