package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	// namedPath matches a path of the repository in a code span.
	namedPath = regexp.MustCompile("`((?:api|bench|box|cmd|demo|deploy|docs|hack|images|internal|test)/[\\w./*-]+)`")
	// link matches the target of a link, without what follows a number sign.
	link = regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`)
)

// TestNamedPaths_exist keeps documents from pointing at files that were moved or removed.
func TestNamedPaths_exist(t *testing.T) {
	t.Parallel()
	var documents []string
	for _, pattern := range []string{"../*.md", "*.md", "design/*.md", "../*/README.md", "../*/*/README.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		documents = append(documents, found...)
	}
	seen := 0
	check := func(document, name string, places ...string) {
		seen++
		for _, place := range places {
			found, err := filepath.Glob(filepath.Join(place, name))
			if err != nil {
				t.Fatal(err)
			}
			if len(found) > 0 {
				return
			}
		}
		t.Errorf("%s names %s, which is not there", document, name)
	}
	for _, document := range documents {
		if strings.HasSuffix(document, "CHANGELOG.md") {
			continue // it tells of what was
		}
		text, err := os.ReadFile(document)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range namedPath.FindAllStringSubmatch(string(text), -1) {
			if !strings.Contains(m[1], ".Test") { // TestNamedTests_exist looks for tests
				check(document, m[1], "..", filepath.Dir(document))
			}
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			check(document, m[1], filepath.Dir(document))
		}
	}
	if seen < 100 {
		t.Errorf("only %d paths are named", seen)
	}
}
