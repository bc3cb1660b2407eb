package main

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"regexp"
	"strings"

	"github.com/varvebackup/varve/test/verdict"
)

// failure is a test that failed, or a package without such a test, or a command without such a package.
type failure struct {
	Package, Test string
	// Command ran it in Dir, with this CGO_ENABLED.
	Command         []string
	Dir, CGOEnabled string
	// Load is the load average when it failed.
	Load string
	// Words are what it logged first, or its lines with a mark.
	Words []string
	// Output is the file that has its whole output.
	Output string
	// Final says why it must not be run again. Empty: it may.
	Final string
}

const (
	packageFailed = "the package failed, and none of its tests: it did not build, or its TestMain failed"
	wrongData     = "wrong data"
)

// finalSigns are signs in a test's output that no busy machine explains. A time limit of a whole package is a panic.
var finalSigns = []struct {
	sign *regexp.Regexp
	why  string
}{
	{regexp.MustCompile(regexp.QuoteMeta(verdict.Mark)), wrongData},
	{regexp.MustCompile(regexp.QuoteMeta(verdict.GoldenMark)), "a golden file"},
	{regexp.MustCompile(`^panic: |^fatal error: `), "a panic"},
	{regexp.MustCompile(`WARNING: DATA RACE|race detected during execution of test`), "a data race"},
	{regexp.MustCompile(`\[rapid\] (failed|panic) after`), "a property that a seed breaks"}, // another seed would pass
	{regexp.MustCompile(`found unexpected goroutines`), "a leaked goroutine"},
	{regexp.MustCompile(`FAIL: \S+:\d+: \S+ and \S+ differ`), "files that a script compares"}, // testscript's cmp
	// What qemu-img compare, qemu-io's read -P and cmp say, in scripts.
	{regexp.MustCompile(`Content mismatch at offset \d|Pattern verification failed at offset \d|\S+ \S+ differ: (byte|char) \d`), wrongData},
}

// whyFinal returns why a test with this output must not be run again, or nothing if it may.
func whyFinal(lines []string) string {
	for _, s := range finalSigns {
		for _, line := range lines {
			if s.sign.MatchString(line) {
				return s.why
			}
		}
	}
	return ""
}

// shortName is how a test is called.
func shortName(pkg, test string) string {
	name := strings.TrimPrefix(pkg, module)
	if test != "" {
		name += "." + test
	}
	return name
}

// failuresOf returns where the failures of the tier are whose times go to file.
func failuresOf(file string) string { return strings.TrimSuffix(file, ".tsv") + ".failures" }

// appendFailures adds failures to a file, each in a line of its own, and makes no file for none.
func appendFailures(path string, failures []failure) error {
	var text strings.Builder
	for _, f := range failures {
		line, err := json.Marshal(f)
		if err != nil {
			return err
		}
		text.Write(append(line, '\n'))
	}
	return appendText(path, text.String())
}

// readFailures reads the failures of a tier. No file is none.
func readFailures(path string) (failures []failure, err error) {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // only read
	for decoder := json.NewDecoder(file); ; {
		var f failure
		switch err := decoder.Decode(&f); {
		case errors.Is(err, io.EOF):
			return failures, nil
		case err != nil:
			return nil, err
		}
		failures = append(failures, f)
	}
}
