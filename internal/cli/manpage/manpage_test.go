package manpage_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/varvebackup/varve/internal/cli/manpage"
)

// What roff would take for a request or an escape is shown as it is, and only indented lines keep their breaks.
func TestRender_showsTextAsItIs(t *testing.T) {
	t.Parallel()
	c := &cobra.Command{
		Use: "tool DIR", Short: "Do it", Version: "1.0", Run: func(*cobra.Command, []string) {},
		Long:    ".hidden is a file, and\n'quoted' is a word: C:\\dir --now.\n\n  kept   as\n  it is\n\nThe end.",
		Example: "  tool .",
	}
	c.Flags().StringArrayP("name", "n", []string{"x"}, "the `WORD` that it has")
	const want = `.TH "TOOL" "1" "" "varve 1.0" "Varve"
.SH NAME
tool \- Do it
.SH SYNOPSIS
\fBtool DIR [flags]\fR
.SH DESCRIPTION
\&.hidden is a file, and
\(aqquoted\(aq is a word: C:\edir \-\-now.
.PP
.nf
  kept   as
  it is
.fi
.PP
The end.
.SH OPTIONS
.TP
\fB\-h\fR, \fB\-\-help\fR
help for tool
.TP
\fB\-n\fR, \fB\-\-name\fR \fIWORD\fR
the WORD that it has (default [x])
.TP
\fB\-v\fR, \fB\-\-version\fR
version for tool
.SH EXAMPLES
.nf
  tool .
.fi
`
	if diff := cmp.Diff(want, string(manpage.Render(c))); diff != "" {
		t.Error(diff)
	}
}
