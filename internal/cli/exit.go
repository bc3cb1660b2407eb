package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/human"
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

func usage(format string, args ...any) error {
	return &failure{err: fmt.Errorf(format, args...), code: errclass.ExitUsage}
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

// hint returns what the user can do about an error, or "". program is the name by which the user calls this program.
func hint(err error, program string) string {
	var f *failure
	if errors.As(err, &f) {
		if f.hint == "" && f.code == errclass.ExitUsage {
			return fmt.Sprintf("`%s --help` lists commands, and `--help` after a command shows its flags and examples", program)
		}
		return f.hint
	}
	switch cluster.Classify(err) {
	case cluster.NotInstalled:
		return "install Varve in this cluster (README.md of its repository, \"Using it on a cluster of yours\"; not beside KubeVirt, whose place it takes), or select another cluster with --context"
	case cluster.NotFound:
		return "check the name and the namespace (-n); `list -A` shows the objects of all namespaces"
	case cluster.Exists:
		return "choose another name, or delete the object that has it"
	case cluster.Conflict:
		return "the object changed meanwhile: run the command again"
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

// Report writes an error for the user, with a hint if there is one. It shows what the server said, without control
// characters.
func Report(w io.Writer, err error, program string) {
	if err == nil {
		return
	}
	if program == "kubectl-varve" {
		program = "kubectl varve"
	}
	prefix := "error: "
	for line := range strings.SplitSeq(err.Error(), "\n") {
		fmt.Fprintln(w, prefix+human.Line(line))
		prefix = strings.Repeat(" ", len(prefix))
	}
	if h := hint(err, program); h != "" {
		fmt.Fprintf(w, "hint: %s\n", h)
	}
}
