// Package mirror finds the Debian archive that this machine already uses, so that the project contains no host name.
//
// It reads apt's own sources in both formats: deb822 (*.sources) and one line per entry (*.list).
package mirror

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// ErrNone says that none of apt's sources is the Debian archive.
var ErrNone = errors.New("no Debian archive in apt's sources: add one, or set VARVE_DEBIAN_MIRROR to its address")

// source is one entry of apt's sources.
type source struct {
	types, uris, suites, components []string
}

// Find returns the address of the first source that is Debian's main archive, whatever its suite: every suite is in
// the same archive. fsys is the directory /etc/apt.
func Find(fsys fs.FS) (string, error) {
	files, err := sourceFiles(fsys)
	if err != nil {
		return "", fmt.Errorf("list apt's sources: %w", err)
	}
	for _, name := range files {
		text, err := fs.ReadFile(fsys, name)
		if err != nil {
			return "", fmt.Errorf("read apt's sources: %w", err)
		}
		parse := parseLines
		if path.Ext(name) == ".sources" {
			parse = parseDeb822
		}
		for _, s := range parse(string(text)) {
			if uri := s.archiveAddress(); uri != "" {
				return uri, nil
			}
		}
	}
	return "", ErrNone
}

// sourceFiles returns the files that apt reads, in apt's order.
func sourceFiles(fsys fs.FS) ([]string, error) {
	var files []string
	if _, err := fs.Stat(fsys, "sources.list"); err == nil {
		files = append(files, "sources.list")
	}
	entries, err := fs.ReadDir(fsys, "sources.list.d")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		if ext := path.Ext(e.Name()); ext == ".list" || ext == ".sources" {
			files = append(files, path.Join("sources.list.d", e.Name()))
		}
	}
	return files, nil
}

// debianSuites are the names under which the main archive publishes its releases.
var debianSuites = []string{
	"bullseye", "bookworm", "trixie", "forky", "duke", "sid", "oldoldstable", "oldstable", "stable", "testing", "unstable",
}

// archiveAddress returns the source's address if it is Debian's main archive, or the empty string.
func (s source) archiveAddress() string {
	if !slices.Contains(s.types, "deb") || !slices.Contains(s.components, "main") || len(s.uris) == 0 {
		return ""
	}
	for _, suite := range s.suites {
		if slices.Contains(debianSuites, suite) {
			return strings.TrimSuffix(s.uris[0], "/")
		}
	}
	return ""
}

// parseDeb822 reads the stanzas of a *.sources file (sources.list(5), "Deb822-style format").
func parseDeb822(text string) []source {
	var all []source
	for _, stanza := range strings.Split(text, "\n\n") {
		fields := map[string]string{}
		var last string
		scan := bufio.NewScanner(strings.NewReader(stanza))
		for scan.Scan() {
			line := scan.Text()
			switch {
			case strings.HasPrefix(line, "#"):
			case strings.HasPrefix(line, " ") || strings.HasPrefix(line, "\t"):
				fields[last] += " " + strings.TrimSpace(line)
			default:
				name, value, ok := strings.Cut(line, ":")
				if ok {
					last = strings.ToLower(name)
					fields[last] = strings.TrimSpace(value)
				}
			}
		}
		if strings.EqualFold(fields["enabled"], "no") {
			continue
		}
		all = append(all, source{
			types:      strings.Fields(fields["types"]),
			uris:       strings.Fields(fields["uris"]),
			suites:     strings.Fields(fields["suites"]),
			components: strings.Fields(fields["components"]),
		})
	}
	return all
}

// parseLines reads a *.list file (sources.list(5), "One-line-style format").
func parseLines(text string) []source {
	var all []source
	scan := bufio.NewScanner(strings.NewReader(text))
	for scan.Scan() {
		line, _, _ := strings.Cut(scan.Text(), "#")
		kind, rest, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok {
			continue
		}
		rest = strings.TrimSpace(rest)
		if strings.HasPrefix(rest, "[") { // Options, such as signed-by.
			_, after, closed := strings.Cut(rest, "]")
			if !closed {
				continue
			}
			rest = after
		}
		words := strings.Fields(rest)
		if len(words) < 3 {
			continue
		}
		all = append(all, source{types: []string{kind}, uris: words[:1], suites: words[1:2], components: words[2:]})
	}
	return all
}
