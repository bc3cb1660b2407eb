package output

import (
	"io"
	"strings"

	"github.com/mattn/go-runewidth"
	"github.com/spf13/cobra"

	"github.com/varvebackup/varve/internal/cli/human"
)

// Table is rows below a header, if it has one. It is aligned by terminal columns: a character may take two.
type Table struct {
	Header []string
	Rows   [][]string
	// gap is the minimum number of columns between cells; 0 means 3.
	gap int
}

// Add adds a row. Control characters become spaces, and an empty cell becomes a dash.
func (t *Table) Add(cells ...string) {
	for i, cell := range cells {
		cells[i] = human.Or(human.Line(cell))
	}
	t.Rows = append(t.Rows, cells)
}

// AddNoHeadersFlag adds --no-headers.
func AddNoHeadersFlag(c *cobra.Command, into *bool) {
	c.Flags().BoolVar(into, "no-headers", false, "show a table without the line with the names of its columns")
}

// WithoutHeader removes the header if leave says so, and returns the table.
func (t *Table) WithoutHeader(leave bool) *Table {
	if leave {
		t.Header = nil
	}
	return t
}

// Write writes the table, or nothing if it has neither a header nor rows.
func (t *Table) Write(w io.Writer) error { return t.writeAligned(w, &[]int{}) }

// writeAligned writes the table with columns that have at least these widths, and keeps the widths that they got.
func (t *Table) writeAligned(w io.Writer, least *[]int) error {
	rows := t.Rows
	if t.Header != nil {
		rows = append([][]string{t.Header}, rows...)
	}
	gap := t.gap
	if gap == 0 {
		gap = 3
	}
	widths := *least
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], runewidth.StringWidth(cell))
		}
	}
	*least = widths
	var text strings.Builder
	for _, row := range rows {
		for i, cell := range row {
			text.WriteString(cell)
			if i < len(row)-1 {
				text.WriteString(strings.Repeat(" ", widths[i]+gap-runewidth.StringWidth(cell)))
			}
		}
		text.WriteByte('\n')
	}
	_, err := io.WriteString(w, text.String())
	return err
}
