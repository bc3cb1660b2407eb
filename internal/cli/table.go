package cli

import (
	"io"
	"strings"

	"github.com/mattn/go-runewidth"
	"github.com/spf13/cobra"

	"github.com/varvebackup/varve/internal/cli/human"
)

// table is rows below a header, if it has one. It is aligned by terminal columns: a character may take two.
type table struct {
	header []string
	rows   [][]string
	// gap is the minimum number of columns between cells; 0 means 3.
	gap int
}

func (t *table) add(cells ...string) {
	for i, cell := range cells {
		cells[i] = human.Or(human.Line(cell))
	}
	t.rows = append(t.rows, cells)
}

// noHeadersFlag adds --no-headers.
func noHeadersFlag(c *cobra.Command, into *bool) {
	c.Flags().BoolVar(into, "no-headers", false, "show a table without the line with the names of its columns")
}

// withoutHeader removes the header if leave says so, and returns the table.
func (t *table) withoutHeader(leave bool) *table {
	if leave {
		t.header = nil
	}
	return t
}

func (t *table) write(w io.Writer) error {
	rows := t.rows
	if t.header != nil {
		rows = append([][]string{t.header}, rows...)
	}
	gap := t.gap
	if gap == 0 {
		gap = 3
	}
	widths := make([]int, 0, 16)
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], runewidth.StringWidth(cell))
		}
	}
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
