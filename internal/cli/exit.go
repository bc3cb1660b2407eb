package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/human"
)

// Report writes an error for the user, with a hint if there is one. It shows what the server said, without control
// characters. program is the name that the program was started with; commands in the text begin as the user types them.
func Report(w io.Writer, err error, program string) {
	if err == nil {
		return
	}
	message, advice := err.Error(), failure.Hint(err)
	if program == plugin {
		message, advice = asPlugin(message), asPlugin(advice)
	}
	prefix := "error: "
	for line := range strings.SplitSeq(message, "\n") {
		fmt.Fprintln(w, prefix+human.Line(line))
		prefix = strings.Repeat(" ", len(prefix))
	}
	if advice != "" {
		fmt.Fprintf(w, "hint: %s\n", human.Line(advice))
	}
}
