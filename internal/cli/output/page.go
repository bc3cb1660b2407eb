package output

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/varvebackup/varve/internal/cli/human"
)

// Page is a description being written: fields, then sections with tables. It keeps the first write error.
type Page struct {
	Out io.Writer
	Now time.Time
	Err error
}

// Fields writes names and values in two columns. It leaves out empty values.
func (p *Page) Fields(pairs ...string) {
	t := &Table{gap: 2}
	for pair := range slices.Chunk(pairs, 2) {
		if value := human.Line(pair[1]); value != "" {
			t.Rows = append(t.Rows, []string{pair[0] + ":", value})
		}
	}
	p.Keep(t.Write(p.Out))
}

// Section writes a table below a title, indented. An empty one says so.
func (p *Page) Section(title string, t *Table, none string) {
	if len(t.Rows) == 0 {
		if none != "" {
			_, err := fmt.Fprintf(p.Out, "\n%s: %s\n", title, none)
			p.Keep(err)
		}
		return
	}
	var text strings.Builder
	p.Keep(t.Write(&text))
	_, err := fmt.Fprintf(p.Out, "\n%s:\n", title)
	p.Keep(err)
	for line := range strings.Lines(text.String()) {
		_, err := fmt.Fprintf(p.Out, "  %s\n", strings.TrimRight(line, " \n"))
		p.Keep(err)
	}
}

// Keep keeps the first error.
func (p *Page) Keep(err error) {
	if p.Err == nil {
		p.Err = err
	}
}

// Age returns how long ago t was.
func (p *Page) Age(t time.Time) string { return human.Age(p.Now, t) }

// Moment returns t and how long ago it was.
func (p *Page) Moment(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return fmt.Sprintf("%s (%s ago)", t.UTC().Format(time.RFC3339), p.Age(t))
}

// Timestamp returns a moment that may not be known yet.
func (p *Page) Timestamp(t *metav1.Time) string {
	if t == nil {
		return ""
	}
	return p.Moment(t.Time)
}

// FormatTime formats a moment for a table.
func FormatTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

// FormatLabels formats names with values, sorted.
func FormatLabels(set map[string]string) string {
	pairs := make([]string, 0, len(set))
	for k, v := range set {
		pairs = append(pairs, k+"="+v)
	}
	slices.Sort(pairs)
	return strings.Join(pairs, ", ")
}
