// Package command runs external programs and tells how long steps take.
//
// A program that fails yields an error that carries the end of what it wrote, so that nobody has to run it again by
// hand to learn why. A Log may be used by several goroutines; its lines never mix.
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

// tailBytes bounds how much of a failed program's output an error carries.
const tailBytes = 4 << 10

// Log writes one line for every step that took work.
type Log struct {
	mu    sync.Mutex
	w     io.Writer
	now   func() time.Time
	start time.Time
}

// NewLog returns a Log that writes to w; elapsed time counts from this call.
func NewLog(w io.Writer, now func() time.Time) *Log {
	return &Log{w: w, now: now, start: now()}
}

// Printf writes one line, with the seconds since the log was made in front of it.
func (l *Log) Printf(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	elapsed := l.now().Sub(l.start)
	// Progress is for people; a closed terminal must not fail the build.
	_, _ = fmt.Fprintf(l.w, "image %6.1fs  %s\n", elapsed.Seconds(), fmt.Sprintf(format, args...))
}

// Step announces a step that takes a while, runs it, and says how long it took.
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
// standard error (of its standard output, where that is empty). env is added to the environment of this process.
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
		return nil, fmt.Errorf("run %s: %w\n%s", name, err, tail(said))
	}
	return out.Bytes(), nil
}

// tail returns the last lines of what a program said, indented, at most tailBytes of it.
func tail(said []byte) string {
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
