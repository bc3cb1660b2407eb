// Package command runs external programs and reports how long steps take.
//
// The error of a failed program contains the end of its output, so that nobody has to run it again by hand to find
// the cause. Several goroutines may use a Log; its lines never mix.
package command

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// tailBytes limits how much of a failed program's output an error contains.
const tailBytes = 4 << 10

// Log writes one line for each step that did some work.
type Log struct {
	mu    sync.Mutex
	w     io.Writer
	now   func() time.Time
	start time.Time
}

// NewLog returns a Log that writes to w. Elapsed time counts from this call.
func NewLog(w io.Writer, now func() time.Time) *Log {
	return &Log{w: w, now: now, start: now()}
}

// Printf writes one line, prefixed with the seconds since the log was created.
func (l *Log) Printf(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	elapsed := l.now().Sub(l.start)
	// Progress is for people; a closed terminal must not fail the build.
	_, _ = fmt.Fprintf(l.w, "image %6.1fs  %s\n", elapsed.Seconds(), fmt.Sprintf(format, args...))
}

// Step announces a step that takes a while, runs it, and reports how long it took.
func (l *Log) Step(what string, run func() error) error {
	l.Printf("%s ...", what)
	begin := l.now()
	if err := run(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	l.Printf("%s: done in %.1fs", what, l.now().Sub(begin).Seconds())
	return nil
}

// Run executes a program and returns its standard output. The error of a failed program ends with the tail of its
// standard error, or of its standard output if that is empty. env is added to the environment of this process.
func Run(ctx context.Context, env []string, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(cmd.Environ(), env...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		said := errOut.Bytes()
		if len(bytes.TrimSpace(said)) == 0 {
			said = out.Bytes()
		}
		return nil, fmt.Errorf("run %s: %w\n%s", name, err, lastLines(said))
	}
	return out.Bytes(), nil
}

// lastLines returns the last lines of a program's output, indented, at most about tailBytes of it.
func lastLines(said []byte) string {
	text := strings.TrimSpace(string(said))
	if len(text) > tailBytes {
		text = text[len(text)-tailBytes:]
		if i := strings.IndexByte(text, '\n'); i >= 0 {
			text = text[i+1:]
		}
		text = "[…]\n" + text
	}
	return "    " + strings.ReplaceAll(text, "\n", "\n    ")
}
