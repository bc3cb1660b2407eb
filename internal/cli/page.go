package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/varvebackup/varve/internal/cli/human"
)

// page is a description being written: fields, then sections with tables. It keeps the first write error.
type page struct {
	w   io.Writer
	now time.Time
	err error
}

// fields writes names and values in two columns. It leaves out empty values.
func (p *page) fields(pairs ...string) {
	t := &table{gap: 2}
	for pair := range slices.Chunk(pairs, 2) {
		if value := human.Line(pair[1]); value != "" {
			t.rows = append(t.rows, []string{pair[0] + ":", value})
		}
	}
	p.keep(t.write(p.w))
}

// section writes a table below a title, indented. An empty one says so.
func (p *page) section(title string, t *table, none string) {
	if len(t.rows) == 0 {
		if none != "" {
			_, err := fmt.Fprintf(p.w, "\n%s: %s\n", title, none)
			p.keep(err)
		}
		return
	}
	var text strings.Builder
	p.keep(t.write(&text))
	_, err := fmt.Fprintf(p.w, "\n%s:\n", title)
	p.keep(err)
	for line := range strings.Lines(text.String()) {
		_, err := fmt.Fprintf(p.w, "  %s\n", strings.TrimRight(line, " \n"))
		p.keep(err)
	}
}

func (p *page) keep(err error) {
	if p.err == nil {
		p.err = err
	}
}

// age returns how long ago t was.
func (p *page) age(t time.Time) string { return human.Age(p.now, t) }

// moment returns t and how long ago it was.
func (p *page) moment(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return fmt.Sprintf("%s (%s ago)", t.UTC().Format(time.RFC3339), p.age(t))
}

// timestamp returns a moment that may not be known yet.
func (p *page) timestamp(t *metav1.Time) string {
	if t == nil {
		return ""
	}
	return p.moment(t.Time)
}

// timeText formats a moment for a table.
func timeText(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}
