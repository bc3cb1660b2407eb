// Command times shows what `make test` spends its time on. `times collect` runs `go test -json`, prints what `go test`
// prints without -json, and appends how long each package and each test took to a tier's file, and what failed tests
// logged first to another one beside it. `times report` prints the time of each tier, and the slowest tests of all. It needs the standard library alone.
//
// Many processes may collect at once if each tier has one at a time.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
)

const usage = `usage: times collect FILE COMMAND...    run COMMAND, a go test with -json, and append its times to FILE,
                                        and what failed tests logged first to FILE, with .failures for .tsv
       times report DIRECTORY TIER...   print the times of tiers from DIRECTORY/TIER.tsv`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code, err := run(ctx, os.Args[1:], os.Getenv("GOFLAGS"), os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "times:", err)
	}
	os.Exit(code)
}

// run returns the exit code: that of the command that it ran, 1 after an error of its own, and 2 after wrong usage.
// The command writes to stderr itself.
func run(ctx context.Context, args []string, goflags string, stdout io.Writer, stderr *os.File) (int, error) {
	switch {
	case len(args) >= 3 && args[0] == "collect":
		return collect(ctx, args[1], args[2:], verbose(args[2:], goflags), stdout, stderr)
	case len(args) >= 2 && args[0] == "report":
		if err := report(stdout, args[1], args[2:]); err != nil {
			return 1, err
		}
		return 0, nil
	default:
		return 2, errors.New(usage)
	}
}

// collect runs a command, prints its tests' output, and appends their times to a file.
func collect(ctx context.Context, file string, command []string, verbose bool, stdout io.Writer, stderr *os.File) (int, error) {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return 1, err
	}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	// `go test` ends its tests after an interrupt, and then itself.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.Stdin, cmd.Stderr = os.Stdin, stderr
	events, err := cmd.StdoutPipe()
	if err != nil {
		return 1, err
	}
	if err := cmd.Start(); err != nil {
		return 1, err
	}
	p := newPrinter(stdout, stderr, verbose)
	readErr := p.read(events)
	err = cmd.Wait()
	writeErr := errors.Join(appendRecords(file, p.records), appendText(failuresOf(file), p.failures.String()))
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitCode() > 0:
		return exit.ExitCode(), errors.Join(readErr, writeErr)
	case err != nil || readErr != nil || writeErr != nil:
		return 1, errors.Join(err, readErr, writeErr)
	}
	return 0, nil
}
