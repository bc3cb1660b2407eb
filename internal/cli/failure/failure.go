// Package failure gives the errors of commands their exit codes, and hints at what the user can do.
package failure

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/errclass"
)

// Error is an error with its exit code and what the user can do about it.
type Error struct {
	Err  error
	Code int
	Hint string
}

func (f *Error) Error() string { return f.Err.Error() }

func (f *Error) Unwrap() error { return f.Err }

// Usage returns an error for a value that cannot be used. The message says what can.
func Usage(format string, args ...any) error {
	return &Error{Err: fmt.Errorf(format, args...), Code: errclass.ExitUsage}
}

// Misused returns an error for a command line that does not have the form of c. The hint leads to the help of c.
func Misused(c *cobra.Command, format string, args ...any) error {
	shown := "arguments and flags, with examples"
	if c.HasSubCommands() {
		shown = "commands"
	}
	hint := fmt.Sprintf("`%s --help` shows its %s", c.CommandPath(), shown)
	return &Error{Err: fmt.Errorf(format, args...), Code: errclass.ExitUsage, Hint: hint}
}

// New returns an error with exit code 1 and a hint, which may be empty.
func New(hint, format string, args ...any) error {
	return &Error{Err: fmt.Errorf(format, args...), Code: errclass.ExitFailure, Hint: hint}
}

// ErrTimeout is the cause of a context that ended by --timeout.
var ErrTimeout = errors.New("timed out")

// Code returns the exit code for the error of a command.
func Code(err error) int {
	var f *Error
	switch {
	case errors.As(err, &f):
		return f.Code
	case errors.Is(err, ErrTimeout):
		return errclass.ExitTimeout
	}
	if class := cluster.Classify(err).ErrorClass(); class != nil {
		return errclass.ExitCode(class)
	}
	return errclass.ExitCode(err)
}

// Hint returns what the user can do about an error, or "".
func Hint(err error) string {
	var f *Error
	if errors.As(err, &f) {
		return f.Hint
	}
	switch cluster.Classify(err) {
	case cluster.NotInstalled:
		return "install Varve in this cluster (see \"Using it on a cluster of yours\" in its README.md), " +
			"or select another cluster with --context"
	case cluster.NotFound:
		return "check the name and the namespace (-n); `list -A` shows the objects of all namespaces"
	case cluster.Exists:
		return "choose another name, or delete the object that has it"
	case cluster.Conflict:
		return "the object has changed: run the command again"
	case cluster.Forbidden:
		return "ask for the cluster role varve-edit (or varve-view to read) in this namespace: see docs/cli.md"
	case cluster.Unauthorized:
		return "log in again: the cluster does not accept this kubeconfig's user"
	case cluster.Unreachable:
		return "check that the cluster runs and that --kubeconfig or --context selects it"
	case cluster.Unconfigured:
		return "set KUBECONFIG, or give --kubeconfig"
	default:
		return ""
	}
}

// ExplainForbidden adds the hint, which names the rights that the user lacks, to an error that says that the cluster
// forbids something. An error that has its own hint keeps it.
func ExplainForbidden(err error, hint string) error {
	var explained *Error
	if errors.As(err, &explained) || cluster.Classify(err) != cluster.Forbidden {
		return err
	}
	return &Error{Err: err, Code: errclass.ExitRefused, Hint: hint}
}

// Interrupted returns err, unless the user has interrupted the command. Then the error only says so, what became of the
// work, and what the user can do. A context that ended with a cause that has a class was not interrupted by the user.
func Interrupted(ctx context.Context, err error, what, hint string) error {
	var f *Error
	if ctx.Err() == nil || !errors.Is(err, context.Canceled) || errors.As(err, &f) || errclass.Of(context.Cause(ctx)) != errclass.None {
		return err
	}
	text := "interrupted"
	if what != "" {
		text += ": " + what
	}
	return &Error{Err: errors.New(text), Code: errclass.ExitInterrupted, Hint: hint}
}
