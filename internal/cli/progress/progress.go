// Package progress shows the progress of something that takes a while: a bar on a terminal, lines in a log, objects for
// a program.
//
// A Renderer belongs to one goroutine. It writes to one stream, which nobody else may write to between the first Show
// and Close. A failed write ends nothing; Close reports it.
package progress

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
)

// Mode is a way to show progress.
type Mode string

const (
	// Auto is Bar on a terminal and Plain elsewhere.
	Auto Mode = "auto"
	// Bar is a live bar.
	Bar Mode = "bar"
	// Plain is a line for each step, and one every ten seconds: "name: phase message 42% 1.2 GiB of 3 GiB, 80 MiB/s,
	// 23s left".
	Plain Mode = "plain"
	// JSON is one object per line, for each step and every second.
	JSON Mode = "json"
	// None shows nothing.
	None Mode = "none"
)

// Modes lists the modes in the order in which help names them.
func Modes() []string {
	return []string{string(Auto), string(Bar), string(Plain), string(JSON), string(None)}
}

// Renderer shows reports.
type Renderer interface {
	// Show shows a report. It may drop one that equals the last.
	Show(Report)
	// Close ends the display, and returns the errors of writing it. The last report stays readable, except for a bar,
	// which disappears.
	Close() error
}

// New returns a renderer that writes to out. terminal says whether out is a terminal, which decides what Auto means.
// now is the clock for measuring rates.
func New(mode Mode, out io.Writer, terminal bool, now func() time.Time) (Renderer, error) {
	switch mode = mode.resolve(terminal); mode {
	case Bar:
		return newBar(newContainer(out, terminal), now), nil
	case Plain:
		return &lines{out: out, now: now, every: plainEvery, format: func(r Report) ([]byte, error) { return []byte(r.String()), nil }}, nil
	case JSON:
		return &lines{out: out, now: now, every: jsonEvery, format: func(r Report) ([]byte, error) { return json.Marshal(r) }}, nil
	case None:
		return nothing{}, nil
	default:
		return nil, fmt.Errorf("unknown progress mode %q: use one of %s", mode, strings.Join(Modes(), ", "))
	}
}

// resolve returns the mode that Auto means.
func (m Mode) resolve(terminal bool) Mode {
	switch {
	case m != Auto:
		return m
	case terminal:
		return Bar
	}
	return Plain
}

type nothing struct{}

func (nothing) Show(Report)  {}
func (nothing) Close() error { return nil }
