package cli_test

import (
	"bytes"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/varvebackup/varve/internal/cli"
	"github.com/varvebackup/varve/internal/cli/session"
	"github.com/varvebackup/varve/test/verdict"
)

var update = flag.Bool("update", false, "write docs/cli.md")

func tree(program string) *cobra.Command {
	return cli.New(cli.Options{
		Program: program,
		Streams: session.Streams{In: strings.NewReader(""), Out: &bytes.Buffer{}, Err: &bytes.Buffer{}},
		Now:     func() time.Time { return time.Unix(0, 0) },
		Servers: []*cobra.Command{{Use: "controller", Run: func(*cobra.Command, []string) {}}},
	})
}

func walk(c *cobra.Command, f func(*cobra.Command)) {
	f(c)
	for _, child := range c.Commands() {
		if child.Name() != "completion" && child.Name() != "help" && !child.Hidden {
			walk(child, f)
		}
	}
}

func TestEveryCommandExplainsItself(t *testing.T) {
	t.Parallel()
	seen := 0
	walk(tree("varve"), func(c *cobra.Command) {
		if !c.Runnable() {
			return // a help topic
		}
		seen++
		if c.Short == "" || c.Long == "" {
			t.Errorf("%s: no description", c.CommandPath())
		}
		if !strings.Contains(c.Example, "  varve ") {
			t.Errorf("%s: no example that begins with two spaces and varve", c.CommandPath())
		}
		for line := range strings.Lines(c.Long) {
			if len(line) > 100 {
				t.Errorf("%s: a line too long for a terminal: %s", c.CommandPath(), line)
			}
		}
	})
	if want := 4 + 5 + 4 + 4 + 1; seen < want {
		t.Errorf("%d commands, want at least %d", seen, want)
	}
}

func TestExamplesParse(t *testing.T) {
	t.Parallel()
	walk(tree("varve"), func(c *cobra.Command) {
		for line := range strings.Lines(strings.ReplaceAll(c.Example, "\\\n", " ")) {
			words := shellWords(line)
			if len(words) == 0 || words[0] != "varve" {
				continue
			}
			words = words[1:]
			if i := slices.Index(words, "|"); i >= 0 {
				words = words[:i] // then comes another program
			}
			found, rest, err := tree("varve").Find(words)
			if err != nil || !found.Runnable() || found.HasSubCommands() {
				t.Errorf("%s: example %q runs nothing: %v", c.CommandPath(), line, err)
				continue
			}
			if err := found.ParseFlags(rest); err != nil {
				t.Errorf("%s: example %q: %v", c.CommandPath(), line, err)
				continue
			}
			if err := found.ValidateArgs(found.Flags().Args()); err != nil {
				t.Errorf("%s: example %q: %v", c.CommandPath(), line, err)
			}
		}
	})
}

// shellWords splits a line at its spaces, but not at those between double quotes.
func shellWords(line string) []string {
	quoted := false
	words := strings.FieldsFunc(line, func(r rune) bool {
		if r == '"' {
			quoted = !quoted
		}
		return !quoted && unicode.IsSpace(r)
	})
	for i := range words {
		words[i] = strings.ReplaceAll(words[i], `"`, "")
	}
	return words
}

func TestPluginHelpNamesKubectl(t *testing.T) {
	t.Parallel()
	root := tree("kubectl-varve")
	walk(root, func(c *cobra.Command) {
		var out bytes.Buffer
		root.SetOut(&out)
		if err := c.Help(); err != nil {
			t.Fatal(err)
		}
		for _, wrong := range []string{"  varve", "`varve", "kubectl-varve"} {
			if strings.Contains(out.String(), wrong) {
				t.Errorf("help of %s has %q:\n%s", c.CommandPath(), wrong, out.String())
			}
		}
	})
}

func TestServersAreHidden(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	root := tree("varve")
	root.SetOut(&out)
	if err := root.Help(); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(out.String(), "controller") {
		t.Errorf("help shows servers:\n%s", out.String())
	}
	out.Reset()
	root.SetArgs([]string{"help", "servers"})
	if err := root.Execute(); err != nil || !strings.Contains(out.String(), "controller") {
		t.Errorf("help servers: %v\n%s", err, out.String())
	}
}

const reference = "../../docs/cli.md"

func TestReference(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := cli.Reference(&out, tree("varve")); err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(reference, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(reference)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(have), out.String()); diff != "" {
		t.Errorf(verdict.GoldenMark+"docs/cli.md is out of date, run make generate: %s", diff)
	}
}
