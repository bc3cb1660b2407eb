// Package manpage writes the manual pages of commands in roff, from the same texts as their help.
//
// The texts are plain, not Markdown: paragraphs are filled, indented lines stay as they are. The pages have no date, so
// that the same program makes the same pages.
package manpage

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// section is the manual's section for commands of users.
const section = "1"

// WriteAll writes the page of c and of every visible command below it into a directory, which it makes.
func WriteAll(dir string, c *cobra.Command) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, c := range List(c) {
		if err := os.WriteFile(filepath.Join(dir, FileName(c)), Render(c), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// List returns c and every visible command below it. Help topics are no commands.
func List(c *cobra.Command) []*cobra.Command {
	all := []*cobra.Command{c}
	for _, child := range visibleChildren(c) {
		all = append(all, List(child)...)
	}
	return all
}

func visibleChildren(c *cobra.Command) (children []*cobra.Command) {
	for _, child := range c.Commands() {
		if child.IsAvailableCommand() && child.Name() != "help" {
			children = append(children, child)
		}
	}
	return children
}

// FileName returns the name of a command's page, such as varve-vm-list.1.
func FileName(c *cobra.Command) string { return pageName(c) + "." + section }

func pageName(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

// Render returns the page of a command.
func Render(c *cobra.Command) []byte {
	// cobra adds these flags only when it runs a command.
	c.InitDefaultHelpFlag()
	c.InitDefaultVersionFlag()
	p := &page{}
	p.writeLine(`.TH "%s" "%s" "" "%s" "Varve"`, escapeRoff(strings.ToUpper(pageName(c))), section, escapeRoff(strings.TrimSpace("varve "+c.Root().Version)))
	p.writeLine(".SH NAME")
	p.writeLine(`%s \- %s`, escapeRoff(pageName(c)), escapeRoff(c.Short))
	p.writeLine(".SH SYNOPSIS")
	p.writeLine(`\fB%s\fR`, escapeRoff(formatSynopsis(c)))
	p.writeLine(".SH DESCRIPTION")
	p.writeText(c.Long)
	p.writeCommands(visibleChildren(c))
	p.writeFlags("OPTIONS", c.NonInheritedFlags())
	p.writeFlags("OPTIONS OF EVERY COMMAND OF THE GROUP", c.InheritedFlags())
	if c.HasExample() {
		p.writeLine(".SH EXAMPLES")
		p.writeVerbatim(strings.Split(c.Example, "\n"))
	}
	p.writeSeeAlso(c)
	return p.Bytes()
}

// formatSynopsis returns how the command is called. A command that only holds others needs one of them.
func formatSynopsis(c *cobra.Command) string {
	if c.HasAvailableSubCommands() {
		return c.CommandPath() + " COMMAND"
	}
	return c.UseLine()
}

// page is a manual page being written.
type page struct{ bytes.Buffer }

func (p *page) writeLine(format string, args ...any) { fmt.Fprintf(p, format+"\n", args...) }

// writeText writes paragraphs. Indented lines stay as they are.
func (p *page) writeText(text string) {
	for i, paragraph := range strings.Split(strings.TrimSpace(text), "\n\n") {
		if i > 0 {
			p.writeLine(".PP")
		}
		lines := strings.Split(strings.Trim(paragraph, "\n"), "\n")
		if strings.HasPrefix(lines[0], "\t") || strings.HasPrefix(lines[0], " ") {
			p.writeVerbatim(lines)
			continue
		}
		for _, line := range lines {
			p.writeLine("%s", escapeRoff(line))
		}
	}
}

// writeVerbatim writes lines that are not filled.
func (p *page) writeVerbatim(lines []string) {
	p.writeLine(".nf")
	for _, line := range lines {
		p.writeLine("%s", escapeRoff(strings.TrimRight(strings.ReplaceAll(line, "\t", "  "), " ")))
	}
	p.writeLine(".fi")
}

func (p *page) writeCommands(children []*cobra.Command) {
	if len(children) == 0 {
		return
	}
	p.writeLine(".SH COMMANDS")
	for _, child := range children {
		p.writeLine(".TP")
		p.writeLine(`\fB%s\fR(%s)`, escapeRoff(pageName(child)), section)
		p.writeLine("%s", escapeRoff(child.Short))
	}
}

func (p *page) writeFlags(title string, flags *pflag.FlagSet) {
	if !flags.HasAvailableFlags() {
		return
	}
	p.writeLine(".SH %s", title)
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Deprecated != "" {
			return
		}
		name := `\fB` + escapeRoff("--"+f.Name) + `\fR`
		if f.Shorthand != "" {
			name = `\fB` + escapeRoff("-"+f.Shorthand) + `\fR, ` + name
		}
		value, usage := pflag.UnquoteUsage(f)
		if value != "" {
			name += ` \fI` + escapeRoff(strings.TrimSuffix(value, "Array")) + `\fR`
		}
		switch f.DefValue {
		case "", "[]", "false", "0":
		default:
			usage += " (default " + f.DefValue + ")"
		}
		p.writeLine(".TP")
		p.writeLine("%s", name)
		p.writeLine("%s", escapeRoff(usage))
	})
}

func (p *page) writeSeeAlso(c *cobra.Command) {
	var pages []string
	if c.HasParent() {
		pages = append(pages, fmt.Sprintf(`\fB%s\fR(%s)`, escapeRoff(pageName(c.Parent())), section))
		for _, sibling := range visibleChildren(c.Parent()) {
			if sibling != c {
				pages = append(pages, fmt.Sprintf(`\fB%s\fR(%s)`, escapeRoff(pageName(sibling)), section))
			}
		}
	}
	if len(pages) > 0 {
		p.writeLine(".SH SEE ALSO")
		p.writeLine("%s", strings.Join(pages, ",\n"))
	}
}

// escapeRoff returns text that roff shows as it is. A line that begins with a dot or an apostrophe would be a request.
func escapeRoff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`, `"`, `\(dq`).Replace(text)
	if strings.HasPrefix(text, ".") {
		return `\&` + text
	}
	return text
}
