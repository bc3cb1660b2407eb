// Package guard turns panics into errors. A goroutine that panics ends its process, and with a launcher that is a virtual
// machine: what a launcher runs in goroutines goes through Call.
package guard

import (
	"fmt"
	"runtime/debug"
)

// PanicError is the error of a call that panicked.
type PanicError struct {
	// Value is what panic was called with.
	Value any
	// Stack is where, for a log.
	Stack string
}

func (p *PanicError) Error() string { return fmt.Sprintf("internal error: %v", p.Value) }

// Call returns what f returns, or a *PanicError.
func Call(f func() error) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = &PanicError{Value: value, Stack: string(debug.Stack())}
		}
	}()
	return f()
}
