package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

const (
	// mostAgain is how many tests are run again at most. More of them are no accident.
	mostAgain = 8
	// tries is how often each of them is run.
	tries = 2
)

// conclude runs what failed again, and prints how all tests ended. It reports whether the run has passed.
func conclude(ctx context.Context, stdout io.Writer, stderr *os.File, dir string, tiers []string) (bool, error) {
	var failures []failure
	for _, tier := range tiers {
		found, err := readFailures(filepath.Join(dir, tier+".failures"))
		if err != nil {
			return false, err
		}
		failures = append(failures, found...)
	}
	var flaky []failure
	if len(failures) <= mostAgain && !slices.ContainsFunc(failures, failure.isFinal) {
		var err error
		if flaky, failures, err = runAgain(ctx, stdout, stderr, failures); err != nil {
			return false, err
		}
	}
	if err := report(stdout, dir, tiers); err != nil {
		return false, err
	}
	if err := printCount(stdout, dir, tiers, len(failures), len(flaky)); err != nil {
		return false, err
	}
	for _, f := range flaky {
		fmt.Fprintf(stdout, "FLAKY %s (load %s; its output: %s)\n", shortName(f.Package, f.Test), f.Load, f.Output)
	}
	printFailures(stdout, failures)
	return len(failures) == 0, nil
}

func (f failure) isFinal() bool { return f.Final != "" }

// printFailures prints what failed. What means wrong data comes last.
func printFailures(w io.Writer, failures []failure) {
	slices.SortStableFunc(failures, func(a, b failure) int {
		switch {
		case a.Final == wrongData && b.Final != wrongData:
			return 1
		case a.Final != wrongData && b.Final == wrongData:
			return -1
		}
		return 0
	})
	for _, f := range failures {
		fmt.Fprintf(w, "FAILED %s", shortName(f.Package, f.Test))
		if f.Final != "" {
			fmt.Fprintf(w, ": not run again for %s", f.Final)
		}
		fmt.Fprintf(w, " (load %s; its output: %s)\n", f.Load, f.Output)
		for _, line := range f.Words {
			fmt.Fprintf(w, "    %s\n", line)
		}
	}
}

// runAgain runs tests alone, and returns those that passed and those that did not.
func runAgain(ctx context.Context, stdout io.Writer, stderr *os.File, failures []failure) (flaky, failed []failure, err error) {
	for _, f := range failures {
		passed := false
		for try := 1; try <= tries && !passed && f.Final == ""; try++ {
			fmt.Fprintf(stdout, "==== %s runs again, alone: try %d of %d\n", shortName(f.Package, f.Test), try, tries)
			command, err := f.commandAlone()
			if err != nil {
				return nil, nil, err
			}
			observed, code, err := execute(ctx, command, f.env(), stdout, stderr)
			if err != nil {
				return nil, nil, err
			}
			passed = code == 0 && observed.hasPassed(f)
			for _, again := range observed.failures(code) {
				f.Final = again.Final
				if again.Final != "" {
					f.Words = again.Words
				}
			}
		}
		if passed {
			flaky = append(flaky, f)
		} else {
			failed = append(failed, f)
		}
	}
	return flaky, failed, nil
}

// hasPassed reports whether the test of a failure ran and passed: a pattern that names nothing passes, too.
func (o *observation) hasPassed(f failure) bool {
	pkg := o.execution.Package(f.Package)
	if pkg == nil {
		return false
	}
	for _, c := range pkg.Passed {
		if c.Test.Name() == f.Test {
			return true
		}
	}
	return false
}

// env is what the command needs beside the environment. The temporary files of the first run may have been in memory,
// in a directory that is gone.
func (f failure) env() []string {
	env := []string{"TMPDIR=", "GOTMPDIR="}
	if f.CGOEnabled != "" {
		env = append(env, "CGO_ENABLED="+f.CGOEnabled)
	}
	return env
}

// commandAlone is the command that failed, for this test alone.
func (f failure) commandAlone() ([]string, error) {
	packages := len(f.Command)
	for packages > 0 && (strings.HasPrefix(f.Command[packages-1], "./") || strings.HasPrefix(f.Command[packages-1], module)) {
		packages--
	}
	if packages == len(f.Command) {
		return nil, fmt.Errorf("run %s again: no package at the end of %q", shortName(f.Package, f.Test), f.Command)
	}
	var parts []string
	for part := range strings.SplitSeq(f.Test, "/") {
		parts = append(parts, "^"+regexp.QuoteMeta(part)+"$")
	}
	command := []string{"env", "-C", f.Dir}
	// The last -run counts.
	command = append(command, f.Command[:packages]...)
	return append(command, "-count=1", "-run", strings.Join(parts, "/"), f.Package), nil
}
