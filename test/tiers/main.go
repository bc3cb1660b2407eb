// Command tiers runs the tests of a tier and says in the end whether they passed. It reads `go test -json` with the
// library of gotestsum, which prints the tests, too.
//
// A test that failed in `make test` is run again, alone, when all tiers have ended: at most twice, and at most 8 tests.
// If it passes, the run has passed and names it as flaky. A failure that no busy machine explains is final; see whyFinal.
//
// Many processes may run at once if each tier has one at a time.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

const usage = `usage: tiers run FILE COMMAND...         run COMMAND, a go test with -json, print its tests, append their times to FILE,
                                         and failed tests to FILE, with .failures for .tsv. With VARVE_TEST_AGAIN=1
                                         the exit code is 0 if all that failed may be run again
       tiers conclude DIRECTORY TIER...  run what failed again, and print the times of tiers from DIRECTORY/TIER.tsv, what is
                                         flaky and what failed`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code, err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "tiers:", err)
	}
	os.Exit(code)
}

// run returns the exit code: that of the command that it ran, 1 after a failure, and 2 after wrong usage. The command
// writes to stderr itself.
func run(ctx context.Context, args []string, stdout io.Writer, stderr *os.File) (int, error) {
	switch {
	case len(args) >= 3 && args[0] == "run":
		r := tierRun{file: args[1], command: args[2:], again: os.Getenv("VARVE_TEST_AGAIN") != "", stdout: stdout, stderr: stderr}
		return r.run(ctx)
	case len(args) >= 2 && args[0] == "conclude":
		passed, err := conclude(ctx, stdout, stderr, args[1], args[2:])
		if err != nil || !passed {
			return 1, err
		}
		return 0, nil
	default:
		return 2, errors.New(usage)
	}
}
