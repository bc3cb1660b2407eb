// Package progress shows how something that takes a while goes on: a bar on a terminal, a line for each change
// where a log is read, an object for each change where a program reads.
//
// A Renderer belongs to one goroutine. It writes to one stream, which must not be written by others between the first Show
// and Close. A write that fails is reported by Close, once: progress that nobody sees ends nothing.
package progress

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/varvebackup/varve/internal/cli/human"
)

// Mode is a way to show progress.
type Mode string

const (
	// Auto is Bar on a terminal and Plain elsewhere.
	Auto Mode = "auto"
	// Bar is a live bar.
	Bar Mode = "bar"
	// Plain is a line for each change: "name: phase message 42% 1.2 GiB of 3 GiB".
	Plain Mode = "plain"
	// JSON is one object a line for each change.
	JSON Mode = "json"
	// None shows nothing.
	None Mode = "none"
)

// Modes lists the modes in the order in which help names them.
func Modes() []string {
	return []string{string(Auto), string(Bar), string(Plain), string(JSON), string(None)}
}

// Report is how it goes at one moment.
type Report struct {
	// Name is the object.
	Name string `json:"name"`
	// Phase is its state in one word.
	Phase string `json:"phase,omitempty"`
	// Message says what is done or waited for.
	Message string `json:"message,omitempty"`
	// Percent is from 0 to 100. It has no meaning while TotalBytes is 0.
	Percent int `json:"percent"`
	// ProcessedBytes of TotalBytes are done. TotalBytes is 0 while it is not known.
	ProcessedBytes int64 `json:"processedBytes"`
	TotalBytes     int64 `json:"totalBytes"`
}

// String is the report as Plain shows it.
func (r Report) String() string {
	text := strings.Join(slices.DeleteFunc([]string{human.Line(r.Phase), human.Line(r.Message)}, func(s string) bool { return s == "" }), " ")
	if r.TotalBytes > 0 {
		text += fmt.Sprintf(" %d%% %s of %s", r.Percent, human.Bytes(r.ProcessedBytes), human.Bytes(r.TotalBytes))
	}
	return human.Line(r.Name) + ": " + strings.TrimSpace(text)
}

// Percent is how much of total bytes is processed, from 0 to 100.
func Percent(processed, total int64) int {
	if total <= 0 || processed <= 0 {
		return 0
	}
	return int(min(float64(processed)/float64(total)*100, 100))
}

// Renderer shows reports.
type Renderer interface {
	// Show shows a report. One that does not differ from the last may be dropped.
	Show(Report)
	// Close ends the display, and returns the first error of writing it. The last report stays readable, except a bar,
	// which disappears.
	Close() error
}

// New returns a renderer that writes to out. terminal says whether out is one: it decides what Auto means.
func New(mode Mode, out io.Writer, terminal bool) (Renderer, error) {
	if mode == Auto {
		mode = Plain
		if terminal {
			mode = Bar
		}
	}
	switch mode {
	case Bar:
		return newBar(out, terminal), nil
	case Plain:
		return &lines{out: out, format: func(r Report) ([]byte, error) { return []byte(r.String()), nil }}, nil
	case JSON:
		return &lines{out: out, format: func(r Report) ([]byte, error) { return json.Marshal(r) }}, nil
	case None:
		return nothing{}, nil
	default:
		return nil, fmt.Errorf("unknown progress mode %q: use one of %s", mode, strings.Join(Modes(), ", "))
	}
}

// lines writes a line for each report that differs from the one before in more than its bytes: a copy of a large disk
// has a hundred lines, not a line a second.
type lines struct {
	out    io.Writer
	format func(Report) ([]byte, error)
	last   Report
	shown  bool
	err    error
}

func (l *lines) Show(r Report) {
	if l.shown && sameStep(l.last, r) {
		return
	}
	l.last, l.shown = r, true
	text, err := l.format(r)
	if err == nil {
		_, err = l.out.Write(append(text, '\n'))
	}
	l.err = errors.Join(l.err, err)
}

func sameStep(a, b Report) bool {
	a.ProcessedBytes, b.ProcessedBytes = 0, 0
	return a == b
}

func (l *lines) Close() error { return l.err }

type nothing struct{}

func (nothing) Show(Report)  {}
func (nothing) Close() error { return nil }
