package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"gotest.tools/gotestsum/testjson"
)

// format is gotestsum's: a line for each package, and failed tests with their output as soon as they have failed.
const format = "pkgname-and-test-fails"

// tierRun is one `go test` of a tier.
type tierRun struct {
	file    string // of times
	command []string
	again   bool // what may be run again does not fail the command
	stdout  io.Writer
	stderr  *os.File
}

// run runs the command and appends what it took, and what failed, to the tier's files.
func (r tierRun) run(ctx context.Context) (int, error) {
	if err := os.MkdirAll(filepath.Dir(r.file), 0o755); err != nil {
		return 1, err
	}
	observed, code, err := execute(ctx, r.command, nil, r.stdout, r.stderr)
	if err != nil {
		return 1, err
	}
	failures, err := r.keepFailures(observed, code)
	if err := errors.Join(err, appendRecords(r.file, observed.records()), appendFailures(failuresOf(r.file), failures)); err != nil {
		return 1, err
	}
	if !r.again || code == 0 {
		return code, nil
	}
	for _, f := range failures {
		if f.Final != "" {
			return code, nil
		}
	}
	fmt.Fprintf(r.stdout, "%d failed tests run again, alone, when all tiers have ended\n", len(failures))
	return 0, nil
}

// keepFailures describes what failed, and writes the output of each failed test to a file.
func (r tierRun) keepFailures(observed *observation, code int) ([]failure, error) {
	failures := observed.failures(code)
	dir, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	for i := range failures {
		f := &failures[i]
		f.Command, f.Dir, f.CGOEnabled = r.command, dir, os.Getenv("CGO_ENABLED")
		f.Output = filepath.Join(filepath.Dir(filepath.Dir(r.file)), "test", "flaky", strings.ReplaceAll(shortName(f.Package, f.Test), "/", "_")+".txt")
		if err := os.MkdirAll(filepath.Dir(f.Output), 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(f.Output, []byte(observed.output(*f)), 0o644); err != nil {
			return nil, err
		}
	}
	return failures, nil
}

// execute runs a `go test -json`, prints its tests, and returns what it observed and the exit code. env is added to the
// environment.
func execute(ctx context.Context, command, env []string, stdout io.Writer, stderr *os.File) (*observation, int, error) {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	// `go test` ends its tests after an interrupt, and then itself.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.Stdin, cmd.Stderr, cmd.Env = os.Stdin, stderr, append(os.Environ(), env...)
	events, err := cmd.StdoutPipe()
	if err != nil {
		return nil, 0, err
	}
	if err := cmd.Start(); err != nil {
		return nil, 0, err
	}
	observed := newObservation(stdout)
	var scanErr error
	observed.execution, scanErr = testjson.ScanTestOutput(testjson.ScanConfig{Stdout: events, Handler: observed, IgnoreNonJSONOutputLines: true})
	_, copyErr := io.Copy(io.Discard, events) // so that the command ends
	err = cmd.Wait()
	if scanErr != nil || copyErr != nil || ctx.Err() != nil { // what an interrupt ended says nothing about its tests
		return nil, 0, errors.Join(scanErr, copyErr, context.Cause(ctx))
	}
	testjson.PrintSummary(stdout, observed.execution, testjson.SummarizeErrors)
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return observed, max(exit.ExitCode(), 1), nil // -1 after a signal
	}
	return observed, 0, err
}
