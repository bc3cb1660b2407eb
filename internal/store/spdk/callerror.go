package spdk

import (
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/varvebackup/varve/internal/errclass"
)

// ErrUnsupported is an error of class Invalid: this disk cannot do that, or the target does not know the call.
var ErrUnsupported = errclass.New(errclass.Invalid, "not supported by disks of SPDK")

// The codes of JSON-RPC that stand for something else than an errno.
const (
	codeMethodNotFound = -32601
	codeInvalidParams  = -32602
	codeInternalError  = -32603
)

// CallError is an error that the target answered. Its class is that of its errno, and its code is not enough to find
// that: the same errno comes as a code of its own from one call, and as text beside a code of JSON-RPC from another.
type CallError struct {
	Method  string
	Code    int
	Message string
	// Errno is 0 if the answer tells none.
	Errno syscall.Errno
}

func newCallError(method string, code int, message string) *CallError {
	e := &CallError{Method: method, Code: code, Message: message}
	switch {
	case code == codeInvalidParams || code == codeInternalError:
		// These carry strerror's text of the errno, and nothing else that tells it.
		for _, errno := range errnos {
			if strings.EqualFold(message, errno.Error()) {
				e.Errno = errno
			}
		}
	case code < 0 && code > -4096:
		e.Errno = syscall.Errno(-code)
	}
	return e
}

// errnos are those that the target answers as text.
var errnos = []syscall.Errno{
	syscall.EPERM, syscall.ENOENT, syscall.EIO, syscall.ENOMEM, syscall.EBUSY, syscall.EEXIST, syscall.ENODEV,
	syscall.EINVAL, syscall.ENOSPC, syscall.ETIMEDOUT,
}

func (e *CallError) Error() string { return fmt.Sprintf("it answers %q (%d)", e.Message, e.Code) }

// Unwrap returns the errno and the class of the error.
func (e *CallError) Unwrap() []error {
	if e.Code == codeMethodNotFound {
		return []error{ErrUnsupported}
	}
	var class error
	switch e.Errno {
	case syscall.ENOENT, syscall.ENODEV, syscall.EBUSY:
		// Not NotFound: the target may have been started without its disks. Only a whole list says what a disk lacks.
		class = errclass.Transient
	case syscall.EEXIST, syscall.EPERM:
		class = errclass.Conflict
	case syscall.EINVAL:
		class = errclass.Invalid
	case syscall.ENOSPC, syscall.ENOMEM:
		class = errclass.Exhausted
	case syscall.ETIMEDOUT:
		class = errclass.Unknown
	default:
		return nil
	}
	return []error{e.Errno, class}
}

// isErrno reports whether the target answered an errno.
func isErrno(err error, errno syscall.Errno) bool {
	var e *CallError
	return errors.As(err, &e) && e.Errno == errno
}
