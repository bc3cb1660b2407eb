package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// What a test logs first is most often why it failed; what follows may be long.
const (
	firstLines = 3
	firstBytes = 600
)

// logged is a line that a test logged: it begins with the place.
var logged = regexp.MustCompile(`^\s+\S+\.go:\d+: `)

// event is one line of `go test -json` (`go doc test2json`, and `go help buildjson` for what the compiler says).
type event struct {
	Action  string
	Package string
	Test    string
	Elapsed float64 // seconds
	Output  string
}

// printer turns events into the text that `go test` prints without -json, and into records.
type printer struct {
	stdout, stderr io.Writer
	verbose        bool
	packages       map[string]*output
	streamed       *output   // the package that a verbose printer writes while its tests run
	waiting        []*output // those that wait for it to end, in the order in which they began
	records        []record
	failed         bool
	failures       strings.Builder // what failed tests logged first
	err            error           // the first write that failed
}

// output is the text of one package.
type output struct {
	text    bytes.Buffer
	summary string                      // the last line about the package itself
	held    map[string]*strings.Builder // what each running test has logged: it is printed if the test fails
	named   string                      // the test that a verbose printer named last
	first   map[string][]string         // what each running test has logged first
	ended   bool
	record  record
}

func newPrinter(stdout, stderr io.Writer, verbose bool) *printer {
	return &printer{stdout: stdout, stderr: stderr, verbose: verbose, packages: map[string]*output{}}
}

// read prints events until there are no more. It prints a line that is no event as it is.
func (p *printer) read(events io.Reader) error {
	lines := bufio.NewReader(events)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			p.line(line)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read the output of the tests: %w", err)
		}
	}
	for _, o := range p.packages {
		if !o.ended { // as after a kill
			p.end(o, "fail")
		}
	}
	if p.failed {
		p.print(p.stdout, "FAIL\n")
	}
	return p.err
}

func (p *printer) line(line []byte) {
	var e event
	if err := json.Unmarshal(line, &e); err != nil || e.Action == "" {
		p.print(p.stdout, string(line))
		return
	}
	if e.Package == "" { // from the compiler
		p.print(p.stderr, e.Output)
		return
	}
	o := p.packages[e.Package]
	if o == nil {
		o = &output{held: map[string]*strings.Builder{}, first: map[string][]string{}, record: record{pkg: e.Package}}
		p.packages[e.Package] = o
		p.begin(o)
	}
	switch e.Action {
	case "output":
		p.output(o, e)
	case "pass", "fail", "skip":
		if e.Test != "" {
			o.record.tests = append(o.record.tests, test{name: e.Test, result: e.Action, seconds: e.Elapsed})
			if e.Action == "fail" {
				p.summarize(e.Package, e.Test, o.first[e.Test])
			}
			delete(o.first, e.Test)
			return
		}
		o.record.seconds = e.Elapsed
		p.end(o, e.Action)
	}
}

// summarize notes what a failed test logged first. A test that failed because of its parts has logged nothing.
func (p *printer) summarize(pkg, name string, lines []string) {
	if len(lines) == 0 {
		return
	}
	fmt.Fprintf(&p.failures, "%s %s\n", pkg, name)
	for _, line := range lines {
		line = strings.TrimSpace(line)
		fmt.Fprintf(&p.failures, "    %s\n", strings.ToValidUTF8(line[:min(len(line), firstBytes)], ""))
	}
}

func (p *printer) output(o *output, e event) {
	if e.Test == "" {
		o.summary = e.Output
	} else if o.first[e.Test] = append(o.first[e.Test], e.Output); len(o.first[e.Test]) > firstLines || !logged.MatchString(e.Output) {
		o.first[e.Test] = o.first[e.Test][:len(o.first[e.Test])-1]
	}
	if p.verbose {
		p.writeVerbose(o, e)
		return
	}
	o.write(e)
}

// writeVerbose adds a line and, as `go test -v` does, the name of the test that it is of if that has changed.
func (p *printer) writeVerbose(o *output, e event) {
	switch {
	case strings.HasPrefix(e.Output, "=== "):
		o.named = e.Test
	case strings.HasPrefix(e.Output, "--- "):
		e.Output = strings.Repeat("    ", strings.Count(e.Test, "/")) + e.Output
		o.named = ""
	case e.Test != "" && e.Test != o.named && strings.HasPrefix(e.Output, "    "):
		o.named = e.Test
		e.Output = "=== NAME  " + e.Test + "\n" + e.Output
	}
	o.text.WriteString(e.Output)
	if o == p.streamed {
		p.flush(o)
	}
}

// write adds a line as `go test` without -v does. What a test logs, which is indented, follows its name once it has
// failed, and goes if it has not. What a test writes to its standard output and error is kept.
func (o *output) write(e event) {
	held := o.held[e.Test]
	switch {
	case e.Test == "" && strings.HasPrefix(e.Output, "FAIL\t"):
		o.unfinished()
		o.text.WriteString(e.Output)
	case e.Test == "":
		o.text.WriteString(e.Output)
	case strings.HasPrefix(e.Output, "=== "):
		if held == nil {
			o.held[e.Test] = &strings.Builder{}
		}
	case strings.HasPrefix(e.Output, "--- FAIL: "+e.Test):
		report := e.Output
		if held != nil {
			report += held.String()
		}
		delete(o.held, e.Test)
		o.report(e.Test, report)
	case strings.HasPrefix(e.Output, "--- PASS: "+e.Test), strings.HasPrefix(e.Output, "--- SKIP: "+e.Test):
		delete(o.held, e.Test)
	case strings.HasPrefix(e.Output, "    ") && held != nil:
		held.WriteString(e.Output)
	default:
		o.text.WriteString(e.Output)
	}
}

// report adds what a failed test says to what its parent will say.
func (o *output) report(name, text string) {
	slash := strings.LastIndex(name, "/")
	if slash < 0 {
		o.text.WriteString(text)
		return
	}
	// A name may have slashes of its own, as "TestX/a/b" without a test TestX/a.
	parent := o.held[name[:slash]]
	if parent == nil {
		o.report(name[:slash], text)
		return
	}
	for line := range strings.Lines(text) {
		parent.WriteString("    " + line)
	}
}

// unfinished adds what tests logged that a failed package did not end, as after os.Exit or at the time limit.
func (o *output) unfinished() {
	for _, name := range slices.Sorted(maps.Keys(o.held)) {
		if o.held[name].Len() > 0 {
			o.text.WriteString("=== NAME  " + name + "\n" + o.held[name].String())
		}
	}
}

func (p *printer) begin(o *output) {
	if !p.verbose {
		return
	}
	if p.streamed == nil {
		p.streamed = o
		return
	}
	p.waiting = append(p.waiting, o)
}

func (p *printer) end(o *output, result string) {
	o.ended = true
	o.record.result = result
	if result == "pass" && strings.Contains(o.summary, "\t(cached)") {
		o.record.result = "cached"
	}
	p.records = append(p.records, o.record)
	p.failed = p.failed || result == "fail"
	switch {
	case p.verbose:
		p.next(o)
	case result == "fail":
		p.flush(o)
	default:
		p.print(p.stdout, o.summary)
	}
}

// next prints the packages that ended while the streamed one ran, and streams the one that began first of the others.
func (p *printer) next(ended *output) {
	if ended != p.streamed {
		return
	}
	p.flush(ended)
	p.streamed = nil
	p.waiting = slices.DeleteFunc(p.waiting, func(o *output) bool {
		if o.ended {
			p.flush(o)
		}
		return o.ended
	})
	if len(p.waiting) > 0 {
		p.streamed, p.waiting = p.waiting[0], p.waiting[1:]
		p.flush(p.streamed)
	}
}

func (p *printer) flush(o *output) {
	p.print(p.stdout, o.text.String())
	o.text.Reset()
}

// print keeps the first error, so that tests run to their end when nobody reads what they print.
func (p *printer) print(w io.Writer, text string) {
	if _, err := io.WriteString(w, text); err != nil && p.err == nil {
		p.err = fmt.Errorf("print the output of the tests: %w", err)
	}
}

// verbose reports whether a `go test` with these arguments, and these flags from the environment, prints each test.
func verbose(command []string, goflags string) bool {
	if i := slices.Index(command, "-args"); i >= 0 {
		command = command[:i]
	}
	return slices.ContainsFunc(slices.Concat(strings.Fields(goflags), command), func(word string) bool {
		return slices.Contains([]string{"v", "v=true", "test.v", "test.v=true"}, strings.TrimLeft(word, "-")) && strings.HasPrefix(word, "-")
	})
}
