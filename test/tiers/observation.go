package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"

	"gotest.tools/gotestsum/testjson"

	"github.com/varvebackup/varve/test/verdict"
)

const (
	// What a test logs first is most often why it failed; what follows may be long.
	firstLines = 3
	firstBytes = 600
)

// logged is a line that a test logged: it begins with the place.
var logged = regexp.MustCompile(`^\s+\S+\.go:\d+: `)

// observation is what `go test` has said of its tests.
type observation struct {
	execution *testjson.Execution
	formatter testjson.EventFormatter
	out       *bufio.Writer
	plain     []string        // lines that are no events
	cached    map[string]bool // packages
	loads     map[string]string
}

func newObservation(stdout io.Writer) *observation {
	out := bufio.NewWriter(stdout)
	return &observation{
		out: out, formatter: testjson.NewEventFormatter(out, format, testjson.FormatOptions{HideEmptyPackages: true}),
		cached: map[string]bool{}, loads: map[string]string{},
	}
}

// Event implements testjson.EventHandler.
func (o *observation) Event(event testjson.TestEvent, execution *testjson.Execution) error {
	if event.PackageEvent() && strings.Contains(event.Output, "\t(cached)") {
		o.cached[event.Package] = true
	}
	if event.Action == testjson.ActionFail {
		o.loads[event.Package+" "+event.Test] = loadAverage()
	}
	if err := o.formatter.Format(event, execution); err != nil {
		return err
	}
	return o.out.Flush()
}

// Err implements testjson.EventHandler. It gets lines that are no events.
func (o *observation) Err(text string) error {
	o.plain = append(o.plain, text)
	fmt.Fprintln(o.out, text)
	return o.out.Flush()
}

// loadAverage returns the load of the last minute, or "unknown".
func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	load, _, _ := strings.Cut(string(text), " ")
	return load
}

// records returns what packages and tests took.
func (o *observation) records() (records []record) {
	for _, name := range o.execution.Packages() {
		pkg := o.execution.Package(name)
		r := record{pkg: name, result: string(pkg.Result()), seconds: pkg.Elapsed().Seconds()}
		switch {
		case o.cached[name]:
			r.result = "cached"
		case r.result == "":
			r.result = "skip" // it has no tests
		}
		for _, c := range pkg.Passed {
			r.tests = append(r.tests, test{name: c.Test.Name(), result: "pass", seconds: c.Elapsed.Seconds()})
		}
		for _, c := range pkg.Failed {
			r.tests = append(r.tests, test{name: c.Test.Name(), result: "fail", seconds: c.Elapsed.Seconds()})
		}
		for _, c := range pkg.Skipped {
			r.tests = append(r.tests, test{name: c.Test.Name(), result: "skip", seconds: c.Elapsed.Seconds()})
		}
		records = append(records, r)
	}
	return records
}

// failures returns what failed, each test without those that it is a part of. code is the exit code of the command.
func (o *observation) failures(code int) (failures []failure) {
	for _, c := range testjson.FilterFailedUnique(o.execution.Failed()) {
		lines := o.linesOf(c)
		f := failure{Package: c.Package, Test: c.Test.Name(), Load: o.loads[c.Package+" "+c.Test.Name()], Words: firstWords(lines)}
		if f.Final = whyFinal(lines); f.Final == "" {
			f.Final = whyFinal(o.execution.OutputLines(testjson.TestCase{Package: c.Package}))
		}
		if f.Test == "" { // the package failed, and none of its tests
			f.Final, f.Words = packageFailed, append(telling(lines), lastWords(lines)...)
		}
		if marked := markedLines(lines); len(marked) > 0 {
			f.Words = marked
		}
		failures = append(failures, f)
	}
	if code != 0 && len(failures) == 0 {
		failures = append(failures, failure{Final: fmt.Sprintf("the command ended with exit code %d, and no test failed", code), Words: lastWords(o.plain)})
	}
	return failures
}

// linesOf returns the output of a test, and of those that it is a part of.
func (o *observation) linesOf(c testjson.TestCase) (lines []string) {
	pkg := o.execution.Package(c.Package)
	lines = pkg.OutputLines(c)
	for name := c.Test; name.IsSubTest(); {
		name = testjson.TestName(name.Parent())
		lines = append(lines, pkg.OutputLines(pkg.LastFailedByName(name.Name()))...)
	}
	return lines
}

// output is the whole output of a failed test, and after it that of its package.
func (o *observation) output(f failure) string {
	if f.Package == "" {
		return strings.Join(o.plain, "\n")
	}
	pkg := o.execution.Package(f.Package)
	lines := pkg.OutputLines(testjson.TestCase{Package: f.Package})
	if f.Test != "" {
		lines = append(o.linesOf(pkg.LastFailedByName(f.Test)), lines...)
	}
	return fmt.Sprintf("load %s\n%s", f.Load, strings.Join(lines, ""))
}

func firstWords(lines []string) (words []string) {
	for _, line := range lines {
		if logged.MatchString(line) && len(words) < firstLines {
			words = append(words, shorten(line))
		}
	}
	return words
}

func lastWords(lines []string) (words []string) {
	for _, line := range lines[max(0, len(lines)-firstLines):] {
		words = append(words, shorten(line))
	}
	return words
}

// telling returns the first line that says why a package failed.
func telling(lines []string) []string {
	i := slices.IndexFunc(lines, func(line string) bool { return whyFinal([]string{line}) != "" })
	if i < 0 || i >= len(lines)-firstLines {
		return nil
	}
	return []string{shorten(lines[i])}
}

func markedLines(lines []string) (words []string) {
	for _, line := range lines {
		if (strings.Contains(line, verdict.Mark) || strings.Contains(line, verdict.GoldenMark)) && !slices.Contains(words, shorten(line)) {
			words = append(words, shorten(line))
		}
	}
	return words
}

func shorten(line string) string {
	line = strings.TrimSpace(line)
	return strings.ToValidUTF8(line[:min(len(line), firstBytes)], "")
}
