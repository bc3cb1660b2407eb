package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/errclass"
)

// failure is an error with its exit code and what the user can do about it.
type failure struct {
	err  error
	code int
	hint string
}

func (f *failure) Error() string { return f.err.Error() }

func (f *failure) Unwrap() error { return f.err }

// usage returns an error for a value that cannot be used. The message says what can.
func usage(format string, args ...any) error {
	return &failure{err: fmt.Errorf(format, args...), code: errclass.ExitUsage}
}

// misused returns an error for a command line that does not have the form of c. The hint leads to the help of c.
func misused(c *cobra.Command, format string, args ...any) error {
	shown := "arguments and flags, with examples"
	if c.HasSubCommands() {
		shown = "commands"
	}
	hint := fmt.Sprintf("`%s --help` shows its %s", c.CommandPath(), shown)
	return &failure{err: fmt.Errorf(format, args...), code: errclass.ExitUsage, hint: hint}
}

func failed(hint, format string, args ...any) error {
	return &failure{err: fmt.Errorf(format, args...), code: errclass.ExitFailure, hint: hint}
}

// errTimeout is the cause of a context that ended by --timeout.
var errTimeout = errors.New("timed out")

// Code returns the exit code for the error of a command.
func Code(err error) int {
	var f *failure
	switch {
	case err == nil:
		return errclass.ExitOK
	case errors.As(err, &f):
		return f.code
	case errors.Is(err, errTimeout), errors.Is(err, context.DeadlineExceeded):
		return errclass.ExitTimeout
	}
	switch cluster.Classify(err) {
	case cluster.NotFound:
		return errclass.ExitNotFound
	case cluster.Exists, cluster.Conflict, cluster.Invalid, cluster.Forbidden, cluster.Unauthorized:
		return errclass.ExitRefused
	case cluster.Unreachable:
		return errclass.ExitUnreachable
	case cluster.Interrupted:
		return errclass.ExitInterrupted
	default:
		return errclass.ExitFailure
	}
}

// hint returns what the user can do about an error, or "".
func hint(err error) string {
	var f *failure
	if errors.As(err, &f) {
		return f.hint
	}
	switch cluster.Classify(err) {
	case cluster.NotInstalled:
		return "install Varve in this cluster (see \"Using it on a cluster of yours\" in its README.md; it replaces KubeVirt and cannot run beside it), or select another cluster with --context"
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

// interrupted returns err, unless the user has interrupted the command. Then the error only says so, what became of the
// work, and what the user can do.
func interrupted(ctx context.Context, err error, what, hint string) error {
	var f *failure
	if ctx.Err() == nil || !errors.Is(err, context.Canceled) || errors.As(err, &f) {
		return err
	}
	text := "interrupted"
	if what != "" {
		text += ": " + what
	}
	return &failure{err: errors.New(text), code: errclass.ExitInterrupted, hint: hint}
}
