// Package verdict marks the failures of tests that mean wrong data: bytes, hashes, restore points or extents that differ
// from what they must be. A test that fails on a busy machine is run again, and may pass then (test/tiers). A failure
// with a mark is never run again: it ends the run as failed, and its words are the last that the run prints.
//
// Every comparison of contents in tests end to end, with real peers and in the soaks goes through this package.
package verdict

import (
	"errors"
	"fmt"
	"os"
	"os/exec"

	"github.com/google/go-cmp/cmp"
)

const (
	// Mark stands in the text of each failure that means wrong data.
	Mark = "WRONG DATA: "
	// GoldenMark stands in the text of each failure of a golden file.
	GoldenMark = "GOLDEN FILE: "
)

// TB is what this package needs of a test. A testing.TB has it, and so has a test of rapid.
type TB interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// Errorf reports wrong data, and lets the test go on.
func Errorf(tb TB, format string, args ...any) {
	tb.Helper()
	tb.Errorf("%s", Mark+fmt.Sprintf(format, args...))
}

// Fatalf reports wrong data, and ends the test.
func Fatalf(tb TB, format string, args ...any) {
	tb.Helper()
	tb.Fatalf("%s", Mark+fmt.Sprintf(format, args...))
}

// JudgeErrorf reports a failure, and as wrong data if the contents are all that it can mean. It is for one condition that joins a
// content with what a busy machine explains: pass whether the latter is as it must be, such as err == nil.
func JudgeErrorf(tb TB, wrong bool, format string, args ...any) {
	tb.Helper()
	text := fmt.Sprintf(format, args...)
	if wrong {
		text = Mark + text
	}
	tb.Errorf("%s", text)
}

// JudgeFatalf is JudgeErrorf, and ends the test.
func JudgeFatalf(tb TB, wrong bool, format string, args ...any) {
	tb.Helper()
	text := fmt.Sprintf(format, args...)
	if wrong {
		text = Mark + text
	}
	tb.Fatalf("%s", text)
}

// Error returns an error that means wrong data, for helpers that return what they find. The test that fails with its text
// is marked.
func Error(format string, args ...any) error {
	return fmt.Errorf(Mark+"%w", fmt.Errorf(format, args...))
}

// Differ tells whether err says that contents differ, and is the error of a command that compares them: cmp and
// `qemu-img compare` exit with 1 then, and with more if they are in trouble.
func Differ(err error) bool {
	var failed *exec.ExitError
	return errors.As(err, &failed) && failed.ExitCode() == 1
}

// Golden reports a difference from a golden file, unless got is its content. It returns whether it is.
func Golden(tb TB, file string, got []byte) bool {
	tb.Helper()
	want, err := os.ReadFile(file)
	if err != nil {
		tb.Fatalf("%v", err)
	}
	diff := cmp.Diff(string(want), string(got))
	if diff != "" {
		tb.Errorf(GoldenMark+"%s (-golden +got):\n%s", file, diff)
	}
	return diff == ""
}
