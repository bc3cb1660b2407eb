package cli_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/varvebackup/varve/internal/cli/manpage"
)

// request matches a line that roff takes for a request, with its name.
var request = regexp.MustCompile(`(?m)^[.'](\w*)`)

// requests are those that the pages may use.
var requests = []string{"TH", "SH", "PP", "TP", "nf", "fi"}

func TestManPages_coverEveryCommand(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "man1")
	root := tree("varve")
	if err := manpage.WriteAll(dir, root); err != nil {
		t.Fatal(err)
	}
	walk(root, func(c *cobra.Command) {
		if !c.Runnable() && c.HasParent() {
			return // a help topic
		}
		name := strings.ReplaceAll(c.CommandPath(), " ", "-") + ".1"
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Errorf("%s has no page: %v", c.CommandPath(), err)
			return
		}
		page := string(text)
		if !strings.HasPrefix(page, ".TH \"VARVE") {
			t.Errorf("%s does not begin with .TH", name)
		}
		for _, section := range []string{"NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXAMPLES"} {
			if strings.Count(page, "\n.SH "+section+"\n") != 1 {
				t.Errorf("%s does not have one section %s", name, section)
			}
		}
		for _, found := range request.FindAllStringSubmatch(page, -1) {
			if !slices.Contains(requests, found[1]) {
				t.Errorf("%s: roff takes %q for a request", name, found[0])
			}
		}
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden && !strings.Contains(page, `\fB\-\-`+strings.ReplaceAll(f.Name, "-", `\-`)+`\fR`) {
				t.Errorf("%s lacks --%s", name, f.Name)
			}
		})
	})
	for _, hidden := range []string{"varve-controller.1", "varve-man-pages.1", "varve-help.1"} {
		if _, err := os.Stat(filepath.Join(dir, hidden)); err == nil {
			t.Errorf("a page of a hidden command: %s", hidden)
		}
	}
}
